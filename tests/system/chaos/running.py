"""One run: a stack, its nodes and tenants, the load, the faults, and the verdict as one JSON line."""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.system.chaos.clocks import Clock, build_clock_library, make_clock
from tests.system.chaos.disks import can_mount
from tests.system.chaos.faults import Stage
from tests.system.chaos.fleets import Fleet
from tests.system.chaos.load import ChaosLoad, Submitter
from tests.system.chaos.logs import find_error_loops
from tests.system.chaos.plan import BESIDE, BRITTLE, BRITTLE_LEASE_SECONDS, STEADY, FaultKind, PlannedFault, plan_faults
from tests.system.chaos.wire import open_wire
from tests.system.checker import Facts, Fault, judge
from tests.system.client import Caller, make_tenant, open_caller, publish_prices
from tests.system.stack import Stack
from tests.waiting import eventually

ACKNOWLEDGED_PER_SECOND = 20
# A fault that its process does not come by is planned again in later rounds.
MOST_ROUNDS = 3
_QUIET_SECONDS = 120.0
_FLAVOR = "chaos-gpu"
_ROOT = Path(__file__).parents[3]
_GPU_NODE = {"model": "A100 SXM4 80GB", "devices": 4, "cpu_milli": 16000, "memory_mib": 65536}
_NODES = {
    STEADY: json.dumps({"nodes": [{"name": "steady", "count": 4, **_GPU_NODE}]}),
    BRITTLE: json.dumps({"nodes": [{"name": "brittle", "count": 4, "cpu_milli": 8000, "memory_mib": 32768}]}),
}


@dataclass(slots=True)
class ArmedStack(Stack):
    """A stack with fail points, a clock that can jump, and small disks where this machine allows it."""

    has_small_disks: bool = False

    @property
    def fail_points(self) -> Path:
        """Where they are armed."""
        return self.base / "fail-points"

    def make_clock(self, name: str) -> Clock:
        """A clock of some processes, by its name; made at the first time."""
        library, file = self.base / "clock.so", self.base / f"clock-{name}"
        library = library if library.exists() else build_clock_library(self.base)
        return Clock(library, file) if file.exists() else make_clock(library, file)

    def start_command(self, *, join: bool = True) -> tuple[str, ...]:
        """The same as `millpond up --split`, armed."""
        self.fail_points.mkdir(exist_ok=True)
        clock = self.make_clock("services")
        where = ("--data-dir", str(self.paths.folder), "--port", str(self.port))
        arms = ("--fail-points", str(self.fail_points), "--clock-library", str(clock.library))
        disk = ("--small-disks",) if self.has_small_disks else ()
        program = (sys.executable, "-m", "tests.system.chaos.armed")
        return (*program, *where, *arms, "--clock-file", str(clock.file), *disk)

    def _environment(self) -> dict[str, str]:
        # Not super(): a slotted dataclass is made anew, and the class cell would name the first one.
        return {**Stack._environment(self), "PYTHONPATH": str(_ROOT)}


def run(
    seed: int,
    duration_seconds: float,
    tell: Callable[[str], None],
    *,
    acknowledged_per_second: float = ACKNOWLEDGED_PER_SECOND,
    kinds: Collection[FaultKind] = frozenset(FaultKind),
) -> dict[str, Any]:
    """The summary of a run; `is_sound` says whether nothing was found.

    Args:
        duration_seconds: At least so long; a round of all kinds of faults is ended in any case.
        tell: Gets a line at each fault.
        acknowledged_per_second: Fewer are a finding: a stack that does nothing loses nothing.
        kinds: What is done; what this machine does not allow is left out of them.
    """
    stack = ArmedStack.make(split=True)
    stack.has_small_disks = can_mount()
    try:
        stack.start(timeout_seconds=180)
        wanted = frozenset(kinds) - (frozenset() if stack.has_small_disks else {FaultKind.FILL_DISK})
        summary = asyncio.run(_run_on(stack, seed, duration_seconds, tell, wanted))
        summary["findings"] += find_error_loops(stack.paths.logs)
    finally:
        stack.close()
    rate = summary["acknowledged"] / summary["ran_s"]
    if rate < acknowledged_per_second:
        summary["findings"].append(f"only {rate:.1f} operations per second were acknowledged")
    return {**summary, "is_sound": not summary["findings"]}


async def _run_on(
    stack: ArmedStack, seed: int, duration_seconds: float, tell: Callable[[str], None], wanted: frozenset[FaultKind]
) -> dict[str, Any]:
    async with AsyncExitStack() as exits:
        operator = await exits.enter_async_context(open_caller(stack.url, stack.operator_key))
        stage = await exits.enter_async_context(_set_stage(stack, operator, seed))
        load = stage.load
        began = time.monotonic()
        loading = asyncio.create_task(load.run())
        try:
            plan = plan_faults(seed, frozenset(FaultKind) - wanted)
            await _break_things(stage, plan, wanted, duration_seconds, loading, tell)
            ran = time.monotonic() - began
            load.end()
            await loading
        finally:
            loading.cancel()
        tell(f"{len(load.acknowledged())} acknowledged in {ran:.0f} s; waiting until all is quiet")
        folders = [fleet.folder for fleet in stage.fleets.values()]
        facts = await judge(
            stack,
            operator,
            load.history,
            quiet_seconds=_QUIET_SECONDS,
            agent_folders=folders,
            parked=frozenset(stage.parked),
        )
        return _summarise(seed, ran, stage, facts, await load.judge_witnesses(), wanted)


@asynccontextmanager
async def _set_stage(stack: ArmedStack, operator: Caller, seed: int) -> AsyncIterator[Stage]:
    """Nodes of two kinds, each behind a wire, tenants on them and on this machine."""
    await publish_prices(operator, minimum_seconds=2)
    flavor = {"name": _FLAVOR, "selector": {"vendor": "nvidia", "model_prefix": "A100"}}
    assert (await operator.patiently("POST", "/v1/flavors", flavor)).status_code == 201
    lease = {"unreachable_after_seconds": 3, "lease_seconds": BRITTLE_LEASE_SECONDS, "stop_grace_seconds": 2}
    pools = {STEADY: await _make_pool(operator, "steady"), BRITTLE: await _make_pool(operator, "brittle", **lease)}
    fleets: dict[str, Fleet] = {}
    async with AsyncExitStack() as exits:
        for name, pool in pools.items():
            wire, url = await exits.enter_async_context(open_wire(stack.url, seed))
            token = await operator("POST", "/v1/join-tokens", {"pool_id": pool, "max_uses": 100}, expect=201)
            fleets[name] = Fleet(name, stack, wire, url, token.json()["token"], _NODES[name], stack.make_clock(name))
            fleets[name].start()
            exits.push_async_callback(asyncio.to_thread, fleets[name].stop)
        nodes = await _wait_for_nodes(operator, list(pools.values()), 8)
        load = ChaosLoad(stack, operator, random.Random(seed), await _make_submitters(operator, pools), "", nodes)
        load.policy_id = await _make_policy(operator, pools[STEADY])
        yield Stage(stack, fleets, load, stack.fail_points, stack.make_clock("services"))


async def _make_pool(operator: Caller, name: str, **more: Any) -> str:
    made = await operator("POST", "/v1/pools", {"name": name, **more}, expect=201)
    return str(made.json()["pool_id"])


async def _wait_for_nodes(operator: Caller, pools: list[str], count: int) -> list[str]:
    """The ids of the simulated nodes once all of them take work."""

    async def found() -> list[str] | None:
        nodes = [node for node in await operator.items("/v1/nodes") if node["pool_id"] in pools]
        ready = [str(node["node_id"]) for node in nodes if node["schedulable"]]
        return ready if len(ready) == count else None

    return await eventually(found, 90)


async def _make_submitters(operator: Caller, pools: dict[str, str]) -> list[Submitter]:
    large = {"cpu_milli": 20000, "memory_mib": 65536}
    submitters = [
        Submitter(await make_tenant(operator, "steady-one", pool_id=pools[STEADY], **large), 24, devices=_FLAVOR),
        Submitter(await make_tenant(operator, "steady-two", pool_id=pools[STEADY], **large), 24, devices=_FLAVOR),
        Submitter(await make_tenant(operator, "brittle", pool_id=pools[BRITTLE], **large), 12),
        Submitter(await make_tenant(operator, "real"), 3, is_real=True),
    ]
    for submitter in submitters:
        path, change = f"/v1/virtual-pools/{submitter.tenant.virtual_pool}", {"preemption": "lower_priority"}
        await operator("PATCH", path, change, headers={"If-Match": "*"}, expect=200)
    return submitters


async def _make_policy(operator: Caller, pool: str) -> str:
    body = {"name": "chaos", "pool_id": pool, "flavor": _FLAVOR, "enabled": False, "template": _GPU_NODE}
    made = await operator("POST", "/v1/scaling-policies", body, expect=201)
    return str(made.json()["scaling_policy_id"])


async def _break_things(
    stage: Stage,
    plan: Iterator[PlannedFault],
    wanted: frozenset[FaultKind],
    duration_seconds: float,
    loading: asyncio.Task[None],
    tell: Callable[[str], None],
) -> None:
    """Faults one after another, some beside others, until every wanted kind was done and the time is over."""
    began = time.monotonic()
    beside: dict[FaultKind, asyncio.Task[None]] = {}
    await stage.recover("the start")
    stage.recovery_seconds = 0.0
    for number, fault in enumerate(plan):
        is_over = time.monotonic() - began > duration_seconds
        seen = stage.done.keys() | beside.keys()
        if is_over and (seen == wanted or number >= MOST_ROUNDS * len(wanted)):
            break
        if is_over and fault.kind in seen:
            continue  # only what has not happened yet
        if loading.done():
            loading.result()
        await asyncio.sleep(fault.pause_seconds)
        tell(f"{time.monotonic() - began:5.1f} s  {fault.kind} {fault.target} {fault.lasts_seconds:.1f}")
        if fault.kind in BESIDE:
            if fault.kind in beside:
                await beside[fault.kind]
            beside[fault.kind] = asyncio.create_task(stage.inject(fault))
            continue
        await stage.inject(fault)
        tell(f"{await stage.recover(f'{fault.kind} of {fault.target}'):17.1f} s to be well")
    await asyncio.gather(*beside.values())
    await stage.recover("the end")


def _summarise(
    seed: int, ran: float, stage: Stage, facts: Facts, witnessed: list[str], wanted: frozenset[FaultKind]
) -> dict[str, Any]:
    counts = Counter(finding.fault for finding in facts.findings)
    acknowledged = len(stage.load.acknowledged())
    findings = [f"{finding.fault}: {finding.text}" for finding in facts.findings]
    findings += [f"doubled: {text}" for text in witnessed] + stage.findings
    findings += [f"{one.action} was answered {text}" for one in stage.load.history.operations for text in one.refusals]
    missing = sorted(wanted - stage.done.keys())
    if missing:
        findings.append(f"never done: {', '.join(missing)}")
    return {
        "seed": seed,
        "ran_s": round(ran, 1),
        "acknowledged": acknowledged,
        "faults": dict(sorted(stage.done.items())),
        "left_out": sorted(set(FaultKind) - wanted),
        "lost": counts[Fault.LOST],
        "doubled": counts[Fault.DOUBLED] + len(witnessed),
        "overallocated": counts[Fault.OVERALLOCATED],
        "statement_mismatches": counts[Fault.BILL],
        "preempted": sum(one["reason"] == "preempted" for one in facts.allocations.values()),
        "recovery_s_max": round(stage.recovery_seconds, 2),
        "drain_s_max": round(stage.drain_seconds, 2),
        "findings": findings[:20],
    }
