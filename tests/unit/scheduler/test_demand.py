"""Demand: what more nodes would let start, without what limits hold back and what no node could be known to serve."""

from dataclasses import replace

import pytest

from millpond_contracts.bodies.tenants import Limit, Limits
from millpond_contracts.ecosystem import EcosystemRequirement
from millpond_contracts.ids import JobId, TaskId, VirtualPoolId
from millpond_scheduler.domain.admission import CPU, VirtualPoolState, device
from millpond_scheduler.domain.demand import sum_demand
from millpond_scheduler.domain.plans import Rejection
from millpond_scheduler.domain.requests import Gang, QueuedTask, RequestClass
from millpond_scheduler.domain.verdicts import Reason
from tests.unit.scheduler.world import POOL, TENANT, request

pytestmark = pytest.mark.unit

FLAVOR = "a100"
VPOOL = VirtualPoolId(int=1)


def virtual_pool(devices: int = 100_000, used: int = 0, cpu: int = 1_000_000) -> VirtualPoolState:
    limits = Limits(cpu=Limit(borrow=cpu), memory=Limit(borrow=1_000_000), devices={FLAVOR: Limit(borrow=devices)})
    return VirtualPoolState(VPOOL, TENANT, POOL, limits, {device(FLAVOR): used, CPU: 0})


def gpus(count: int = 1, milli: int | None = 1000, flavors: tuple[str, ...] = ()) -> RequestClass:
    return request(count=count, milli=milli, flavors=flavors)


def tasks_of(wanted: RequestClass, count: int) -> list[QueuedTask]:
    return [QueuedTask(TaskId.new(), JobId.new(), VPOOL, wanted, 50, 0) for _ in range(count)]


def demand_of(
    waiting: list[QueuedTask], reason: Reason, state: VirtualPoolState | None = None
) -> list[tuple[int, int, int, tuple[str, ...]]]:
    """(tasks, devices, milli, flavors) of each shape of the pool."""
    rejections = {one.id: Rejection(reason) for one in waiting}
    found = sum_demand(waiting, rejections, {VPOOL: state or virtual_pool()})
    assert set(found) <= {POOL}
    return [(one.tasks, one.device_count, one.device_milli, one.flavors) for one in found.get(POOL, ())]


@pytest.mark.parametrize("reason", [Reason.NOT_ENOUGH_DEVICES, Reason.POOL_EMPTY, Reason.NO_MATCHING_DEVICE])
def test_demand_when_capacity_alone_is_missing_then_equal_tasks_are_one_shape(reason: Reason) -> None:
    waiting = [*tasks_of(gpus(), 3), *tasks_of(gpus(2), 2), *tasks_of(gpus(milli=250), 4)]
    assert sorted(demand_of(waiting, reason)) == [
        (2, 2, 1000, (FLAVOR,)),
        (3, 1, 1000, (FLAVOR,)),
        (4, 1, 250, (FLAVOR,)),
    ]


@pytest.mark.parametrize(
    "reason",
    [
        Reason.LIMIT_REACHED,
        Reason.GUARANTEE_OF_OTHERS,
        Reason.NO_VIRTUAL_POOL,
        Reason.PLACEABLE,
        Reason.RECLAIMING,
        Reason.PREEMPTING,
    ],
)
def test_demand_when_a_limit_holds_it_back_or_it_starts_anyway_then_none(reason: Reason) -> None:
    assert demand_of(tasks_of(gpus(), 3), reason) == []


@pytest.mark.parametrize(
    ("state", "tasks"),
    [
        (virtual_pool(devices=2000), 2),
        (virtual_pool(devices=4000, used=3000), 1),
        (virtual_pool(devices=4000, used=4000), 0),
        (virtual_pool(cpu=2500), 2),
    ],
)
def test_demand_when_limits_would_stop_it_on_any_number_of_nodes_then_only_what_they_allow(
    state: VirtualPoolState, tasks: int
) -> None:
    assert sum(shape[0] for shape in demand_of(tasks_of(gpus(), 30), Reason.POOL_EMPTY, state)) == tasks


def test_demand_when_a_request_names_flavors_then_those_that_its_limits_know() -> None:
    wanted = gpus(flavors=(FLAVOR, "h100"))
    assert demand_of(tasks_of(wanted, 1), Reason.POOL_EMPTY) == [(1, 1, 1000, (FLAVOR,))]
    assert demand_of(tasks_of(gpus(flavors=("h100",)), 1), Reason.POOL_EMPTY) == []


def test_demand_when_it_constrains_software_then_only_where_nodes_that_fit_were_seen() -> None:
    wanted = request(count=1, ecosystem=EcosystemRequirement(runtime=("cuda",)))
    assert demand_of(tasks_of(wanted, 1), Reason.POOL_EMPTY) == []
    assert demand_of(tasks_of(wanted, 1), Reason.INCOMPATIBLE_RUNTIME) == []
    assert len(demand_of(tasks_of(wanted, 1), Reason.NOT_ENOUGH_DEVICES)) == 1


def test_demand_when_tasks_are_a_gang_then_its_size_is_told() -> None:
    gang = Gang(JobId.new(), (("main", 2),))
    waiting = [replace(one, gang=gang) for one in tasks_of(gpus(), 2)] + tasks_of(gpus(), 1)
    rejections = {one.id: Rejection(Reason.POOL_EMPTY) for one in waiting}
    found = sum_demand(waiting, rejections, {VPOOL: virtual_pool()})[POOL]
    assert sorted((one.gang_size, one.tasks) for one in found) == [(1, 1), (2, 2)]


def test_demand_when_nobody_has_looked_at_a_task_then_it_is_not_told_yet() -> None:
    seen, unseen = tasks_of(gpus(), 2)
    found = sum_demand([seen, unseen], {seen.id: Rejection(Reason.POOL_EMPTY)}, {VPOOL: virtual_pool()})
    assert [shape.tasks for shape in found[POOL]] == [1]
    assert sum_demand([], {TaskId.new(): Rejection(Reason.POOL_EMPTY)}, {VPOOL: virtual_pool()}) == {}
