"""The demo's simulated fleet: what is lent and taken back, a gang, and a part of a device.

The nodes are simulated, everything else is not: they join, beat and take work by the same HTTP as this machine.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from millpond.client.client import Client
from millpond.demo.scenario import DemoFailed, DemoTenant, until_accepted
from millpond_contracts.bodies.allocations import AllocationState, AllocationView, EndReason
from millpond_contracts.bodies.groups import DeviceRequest, GroupSpec, Resources, RunSpec, SimulateSpec
from millpond_contracts.bodies.jobs import JobSpec, JobState, JobView, RetrySpec
from millpond_contracts.bodies.nodes import JoinTokenSpec, NodeState, NodeView
from millpond_contracts.bodies.pools import PoolSpec, PoolView
from millpond_contracts.bodies.tenants import Limit, Limits, VirtualPoolSpec, VirtualPoolView
from millpond_contracts.fleets import FleetFile, NodeEntry
from millpond_contracts.resources import DeviceKind

GPU_NODES, NPU_NODES, PER_NODE = 16, 8, 8
_GANG = 4
_GANG_SECONDS, _SLICE_SECONDS, _RENDER_SECONDS = 8, 4, 120
_TIMEOUT_SECONDS = 40.0
_CPU_MILLI, _MEMORY_MIB = 96_000, 786_432
_TASK_CPU_MILLI, _TASK_MEMORY_MIB = 8_000, 65_536

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fleet:
    """The simulated nodes in their pool, and each tenant's share of it."""

    pool: PoolView
    gpu: str
    npu: str
    seconds: float
    lab: VirtualPoolView
    shop: VirtualPoolView


@dataclass(frozen=True, slots=True)
class FleetJobs:
    """What ran on the fleet; `stopped` are the attempts of `render` that had to make room."""

    render: JobView
    gang: JobView
    fraction: JobView
    started: list[AllocationView]
    stopped: list[AllocationView]


def open_fleet(operator: Client, lab: DemoTenant, shop: DemoTenant, folder: Path) -> Fleet:
    """A pool of simulated nodes; each tenant is sure of half of its GPUs, and the lab lends what it does not use."""
    began = time.monotonic()
    pool = operator.pools.create(PoolSpec(name="fleet", priority=-1000))
    token = operator.join_tokens.create(JoinTokenSpec(pool_id=pool.pool_id))
    assert token.token is not None, "the answer that creates a token shows it"
    size = {"devices": PER_NODE, "cpu_milli": _CPU_MILLI, "memory_mib": _MEMORY_MIB}
    description = FleetFile(
        join_token=token.token,
        nodes=(
            NodeEntry(name="gpu", count=GPU_NODES, model="A100 SXM4 80GB", rack="r1", **size),
            NodeEntry(name="npu", count=NPU_NODES, model="Ascend 910B3", rack="r2", **size),
        ),
    )
    draft = folder / ".fleet.tmp"
    draft.write_text(description.model_dump_json(), encoding="utf-8")
    os.replace(draft, folder / "fleet.json")
    nodes = until(lambda: _ready_nodes(operator, pool), "the simulated nodes are not ready")
    seconds = time.monotonic() - began
    gpu, npu = (next(node.devices[0].flavor for node in nodes if node.name == name) for name in ("gpu-0", "npu-0"))
    half = 1000 * GPU_NODES * PER_NODE // 2
    lent = {gpu: Limit(guaranteed=half, borrow=half, lend=half), npu: Limit(borrow=1000 * NPU_NODES * PER_NODE)}
    kept = {gpu: Limit(guaranteed=half, borrow=half), npu: Limit(borrow=1000 * NPU_NODES * PER_NODE)}
    return Fleet(
        pool,
        gpu,
        npu,
        seconds,
        _share(operator, lab, pool, "lab-fleet", lent),
        _share(operator, shop, pool, "shop-fleet", kept),
    )


def play(fleet: Fleet, lab: DemoTenant, shop: DemoTenant, told: Callable[[str], None]) -> FleetJobs:
    """The shop fills all GPUs; the lab's gang takes back what it is guaranteed; a task takes a part of an NPU.

    Raises:
        DemoFailed: something did not come about in time, or not as it must.
    """
    whole = DeviceRequest(count=PER_NODE, flavors=(fleet.gpu,))
    render = submit_simulated(shop, fleet.shop, "render", GPU_NODES, whole, _RENDER_SECONDS, RetrySpec(max=3))
    until(lambda: len(held(shop, render)) == GPU_NODES, "the shop does not hold all GPUs")
    total, half = GPU_NODES * PER_NODE, GPU_NODES * PER_NODE // 2
    told(f"shop's render holds all {total} GPUs: {half} are its own, {half} are borrowed from lab")
    asked = time.monotonic()
    gang = submit_simulated(lab, fleet.lab, "pretrain", _GANG, whole, _GANG_SECONDS, gang=True)
    part = DeviceRequest(kind=DeviceKind.NPU, milli=250, flavors=(fleet.npu,))
    fraction = submit_simulated(lab, fleet.lab, "notebook", 1, part, _SLICE_SECONDS)
    started = until(lambda: _all(held(lab, gang), _GANG), "the gang did not start")
    seconds = time.monotonic() - asked
    told(f"lab's gang pretrain, {_GANG} x {PER_NODE} GPUs, started whole {seconds:.1f} s after it was submitted")
    stopped = [one for one in shop.client.allocations.list(job_id=render.job_id) if one.reason is EndReason.RECLAIMED]
    if len(stopped) != _GANG or len({one.bound_at for one in started}) != 1:
        raise DemoFailed(f"{len(stopped)} tasks made room for a gang of {_GANG} that started at once or not")
    told(f"{len(stopped)} of render's tasks were stopped for it: they wait again, and their stopping costs nothing")
    end(lab, fraction)
    told(f"lab's notebook ran on 250 thousandths of one {fleet.npu}")
    end(lab, gang)
    shop.client.jobs.cancel(render.job_id)
    until(lambda: not held(shop, render), "the shop's tasks did not stop")
    told("pretrain is done; the shop cancelled what was left of render")
    return FleetJobs(render, gang, fraction, started, stopped)


def _share(
    operator: Client, tenant: DemoTenant, pool: PoolView, name: str, devices: dict[str, Limit]
) -> VirtualPoolView:
    nodes = GPU_NODES + NPU_NODES
    limits = Limits(
        cpu=Limit(guaranteed=nodes * _CPU_MILLI // 2),
        memory=Limit(guaranteed=nodes * _MEMORY_MIB // 2),
        devices=devices,
    )
    spec = VirtualPoolSpec(name=name, tenant_id=tenant.virtual_pool.tenant_id, pool_id=pool.pool_id, limits=limits)
    return until_accepted(lambda: operator.virtual_pools.create(spec))


def submit_simulated(
    tenant: DemoTenant,
    share: VirtualPoolView,
    name: str,
    count: int,
    devices: DeviceRequest,
    seconds: float,
    retry: RetrySpec = RetrySpec(),
    *,
    gang: bool = False,
    time_limit_seconds: int | None = None,
) -> JobView:
    """A job of equal tasks that simulated nodes act out for so many seconds."""
    group = GroupSpec(
        count=count,
        gang=gang,
        resources=Resources(cpu_milli=_TASK_CPU_MILLI, memory_mib=_TASK_MEMORY_MIB, devices=(devices,)),
        run=RunSpec(simulate=SimulateSpec(seconds=seconds)),
        stop_grace_seconds=2,
    )
    spec = JobSpec(
        name=name,
        virtual_pool=share.virtual_pool_id,
        groups=(group,),
        time_limit_seconds=time_limit_seconds,
        retry=retry,
        labels={"demo": "fleet"},
    )
    # The scheduler hears of a new virtual pool by an event.
    return until_accepted(lambda: tenant.client.jobs.submit(spec))


def _ready_nodes(operator: Client, pool: PoolView) -> list[NodeView]:
    nodes = [node for node in operator.nodes.list() if node.pool_id == pool.pool_id]
    return _all([node for node in nodes if node.state is NodeState.READY and node.devices], GPU_NODES + NPU_NODES)


def held(tenant: DemoTenant, job: JobView) -> list[AllocationView]:
    """What the job's tasks hold now, as far as their agents have confirmed it, and what they are giving back."""
    states = (AllocationState.ACTIVE, AllocationState.RELEASING)
    return list(tenant.client.allocations.list(job_id=job.job_id, state=states))


def _all(found: list[T], count: int) -> list[T]:
    return found if len(found) == count else []


def end(tenant: DemoTenant, job: JobView) -> None:
    """Waits for a job's success.

    Raises:
        DemoFailed: it ended otherwise.
    """
    ended = tenant.client.jobs.wait(job.job_id, timeout_seconds=_TIMEOUT_SECONDS)
    if ended.state is not JobState.SUCCEEDED:
        raise DemoFailed(f"{job.name} ended as {ended.state.value}: {ended.message or 'no message'}")


def until(check: Callable[[], T], failure: str, seconds: float = _TIMEOUT_SECONDS) -> T:
    """The first truthy answer.

    Raises:
        DemoFailed: there was none in time.
    """
    deadline = time.monotonic() + seconds
    while not (found := check()):
        if time.monotonic() > deadline:
            raise DemoFailed(f"{failure} after {seconds:.0f} s")
        time.sleep(0.2)
    return found
