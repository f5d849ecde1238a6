"""The demo's NPUs: a task is moved out of the way of a larger one; a gang waits, and what is kept for it is used.

It plays beside the training on this machine, which takes as long.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from millpond.client.client import Client
from millpond.client.errors import Conflict
from millpond.demo.fleet import NPU_NODES, PER_NODE, Fleet, end, held, submit_simulated, until
from millpond.demo.scenario import DemoFailed, DemoTenant
from millpond_contracts.bodies.groups import DeviceRequest
from millpond_contracts.bodies.jobs import JobView, RetrySpec
from millpond_contracts.bodies.moves import MoveOrderSpec, MoveOrderState, MoveOrderView, MovePlanView
from millpond_contracts.bodies.verdicts import Explanation
from millpond_contracts.resources import DeviceKind

# How long a gang waits here before nodes are kept for it; elsewhere ten minutes.
HOLD_SECONDS = 3
_SOLVER_SECONDS, _SOLVER_LIMIT_SECONDS = 18, 120
_PROBE_SECONDS, _LARGE_SECONDS, _ALIGN_SECONDS = 4, 1, 3
# Five and three fill a node: when the five end, ten are free on two nodes, and eight on none.
_PROBE, _EMBED, _SMALL = 5, 3, 4


@dataclass(frozen=True, slots=True)
class Packed:
    """What was played, in the words for it, and the jobs that ran."""

    lines: list[str]
    ran: list[JobView]
    moved: int


def play(fleet: Fleet, operator: Client, lab: DemoTenant, shop: DemoTenant) -> Packed:
    """Fills the NPUs, moves a task, and lets a gang wait.

    Raises:
        DemoFailed: something did not come about in time, or not as it must.
    """
    lines: list[str] = []
    solver = submit_simulated(
        shop, fleet.shop, "solver", NPU_NODES - 2, _npus(fleet, PER_NODE), _SOLVER_SECONDS,
        time_limit_seconds=_SOLVER_LIMIT_SECONDS,
    )  # fmt: skip
    _until_held(shop, solver, NPU_NODES - 2)
    probe = submit_simulated(lab, fleet.lab, "probe", 2, _npus(fleet, _PROBE), _PROBE_SECONDS)
    _until_held(lab, probe, 2)
    embed = submit_simulated(shop, fleet.shop, "embed", 2, _npus(fleet, _EMBED), 120, RetrySpec(max=2))
    _until_held(shop, embed, 2)
    end(lab, probe)
    large = submit_simulated(lab, fleet.lab, "large-model", 1, _npus(fleet, PER_NODE), _LARGE_SECONDS)
    moved = _move(operator, large, lines.append)
    end(lab, large)
    align = submit_simulated(lab, fleet.lab, "align", 2, _npus(fleet, PER_NODE), _ALIGN_SECONDS, gang=True)
    ran = [solver, probe, embed, large, align, *_wait_together(fleet, operator, lab, shop, align, lines.append)]
    shop.client.jobs.cancel(embed.job_id)
    until(lambda: not held(shop, embed), "the shop's tasks did not stop")
    return Packed(lines, ran, moved)


def _move(operator: Client, large: JobView, told: Callable[[str], None]) -> int:
    """Shows what would have to move so that a job starts, and carries it out; how many tasks that were."""

    def ordered() -> list[MovePlanView]:
        # What started a moment ago is left alone elsewhere.
        plan = operator.jobs.plan_moves(large.job_id, cool_down_seconds=0)
        if plan.plan is None:
            return []
        try:
            operator.jobs.order_moves(large.job_id, MoveOrderSpec(plan=plan.plan, cool_down_seconds=0))
        except Conflict:
            return []  # what was seen is no longer so: look again
        return [plan]

    (plan,) = until(ordered, "no moves were planned for large-model")
    told(
        f"lab's large-model needs {PER_NODE} NPUs on one node: {2 * _PROBE} are free, at most {plan.largest_free_block}"
        f" on a node, so {plan.fragmentation_permille / 10:g} % of them are of no use to it"
    )
    for move in plan.moves:
        told(
            f"the plan: move {move.job}/{move.index} from {move.from_node} to {move.to_node}, which loses"
            f" {move.lost_seconds} s of its work; then large-model starts on {' and '.join(plan.nodes)}"
        )

    def settled() -> list[MoveOrderView]:
        return [each for each in operator.jobs.list_move_orders(large.job_id) if each.settled_at is not None]

    (done,) = until(settled, "the moves did not end")
    results = [each.result for each in done.moves]
    if done.state is not MoveOrderState.DONE or set(results) != {"moved"}:
        raise DemoFailed(f"the moves are {done.state.value} ({done.message}): {results}")
    told("carried out: its new place was kept for it before it was asked to stop, and it runs there now")
    return len(results)


def _wait_together(
    fleet: Fleet, operator: Client, lab: DemoTenant, shop: DemoTenant, align: JobView, told: Callable[[str], None]
) -> list[JobView]:
    """Explains why a gang waits; shows what may use the nodes that are kept for it, and what may not."""
    asked = time.monotonic()

    def explained() -> list[tuple[str, datetime]]:
        found = lab.client.jobs.explain(align.job_id)
        if found.gang is None or found.estimated_start is None:
            return []
        return [(found.message, found.estimated_start)]

    ((why, by),) = until(explained, "nobody says why align waits")
    told(f"lab's gang align, 2 x {PER_NODE} NPUs, waits: {why}")
    told(f"by the time limits of what runs it can start at {by:%H:%M:%S} UTC at the latest")
    time.sleep(max(0.0, asked + HOLD_SECONDS + 0.5 - time.monotonic()))
    small = _npus(fleet, _SMALL)
    quick = submit_simulated(shop, fleet.shop, "quick", 1, small, 2, time_limit_seconds=10)
    endless = submit_simulated(shop, fleet.shop, "endless", 1, small, 2)
    (place,) = until(lambda: held(shop, quick), "quick did not start")
    (waits,) = until(lambda: _kept_from(shop, endless), "endless does not wait for what is kept")
    node = operator.nodes.get(place.node_id).name
    if held(lab, align):
        raise DemoFailed("align started before anything could be kept for it")
    told(f"a free node is kept for it; shop's quick, over in time by its limit, runs on {node} meanwhile")
    counts = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in waits.counts.items())
    told(f"shop's endless, which has no limit, would fit there too and waits; of {waits.nodes} nodes: {counts}")
    started = until(lambda: held(lab, align), "align did not start")
    if len(started) != 2 or len({one.bound_at for one in started}) != 1:
        raise DemoFailed(f"{len(started)} tasks of align started, not both at once")
    told(f"align started whole {time.monotonic() - asked:.0f} s after it was submitted: solver ended before its limit")
    for tenant, job in ((lab, align), (shop, quick), (shop, endless)):
        end(tenant, job)
    return [quick, endless]


def _kept_from(shop: DemoTenant, job: JobView) -> list[Explanation]:
    found = shop.client.jobs.explain(job.job_id)
    return [found] if found.counts.get("earmarked") else []


def _until_held(tenant: DemoTenant, job: JobView, tasks: int) -> None:
    until(lambda: len(held(tenant, job)) == tasks, f"{job.name} does not run")


def _npus(fleet: Fleet, count: int) -> DeviceRequest:
    return DeviceRequest(kind=DeviceKind.NPU, count=count, flavors=(fleet.npu,))
