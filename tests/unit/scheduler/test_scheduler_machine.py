"""A pool that lives: tasks come and go, nodes join, are cordoned, shrink, vanish and return; the invariants hold."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond_contracts.bodies.nodes import CordonReason, NodeState
from millpond_contracts.bodies.pools import DeviceSharing
from millpond_contracts.bodies.tenants import Limit
from millpond_contracts.ids import NodeId, TaskId, VirtualPoolId
from millpond_contracts.resources import Isolation
from millpond_scheduler.domain.admission import CPU, MEMORY, Resource
from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.capacity import sum_free
from millpond_scheduler.domain.nodes import NodeRecord, PoolRules
from millpond_scheduler.domain.plans import Plan
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.verdicts import CAPACITY_REASONS, Reason
from tests.unit.scheduler.world import (
    OTHER_POOL,
    POOL,
    RIVAL,
    SECOND_US,
    TENANT,
    World,
    check_invariants,
    contents,
    node,
    placed_tasks,
    request,
    virtual_pool,
)

pytestmark = pytest.mark.unit

TENANTS = st.sampled_from([TENANT, RIVAL])
CPU_MILLI = st.sampled_from([0, 500, 4_000, 16_000])
MEMORY_MIB = st.sampled_from([0, 512, 16_384])


@st.composite
def requests(draw: st.DrawFn) -> RequestClass:
    """CPU-only tasks, whole devices, fractions, slices bounded by memory, and hardware partitions."""
    shape: dict[str, Any] = draw(
        st.sampled_from(
            [
                {},
                {"count": 1},
                {"count": 2},
                {"count": 4, "slice_memory": 40_000},
                {"count": 1, "milli": 100},
                {"count": 1, "milli": 333},
                {"count": 1, "milli": 50, "slice_memory": 30_000},
                {"count": 1, "milli": 600, "slice_memory": 10_000},
                {"count": 1, "milli": None, "slice_memory": 7_001},
                {"count": 1, "milli": 250, "flavors": ["t4"]},
                {"count": 1, "minima": (("bf16_tflops", 300.0),)},
                {"profile": "1g.10gb"},
                {"profile": "2g.20gb"},
                {"profile": "3g.40gb"},
            ]
        )
    )
    return request(draw(CPU_MILLI), draw(MEMORY_MIB), tenant=draw(TENANTS), **shape)


class PoolMachine(RuleBasedStateMachine):
    """Drives one pool by rules; a second pool is there so that nothing ever leaks into it."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.running: list[TaskId] = []
        self.lost: list[NodeRecord] = []
        self.last_node = 0
        self.stopping_before: set[TaskId] = set()
        self.usage_before: dict[VirtualPoolId, dict[Resource, int]] = {}

    @initialize(
        sharing=st.sampled_from(list(DeviceSharing)),
        shared_users=st.booleans(),
        cap=st.integers(0, 8_000),
        lend=st.integers(0, 1_000),
    )
    def begin(self, sharing: DeviceSharing, shared_users: bool, cap: int, lend: int) -> None:
        pools = [
            virtual_pool(1, TENANT, devices={"a100": Limit(guaranteed=1000, hard=1000 + cap), "t4": Limit(borrow=cap)}),
            virtual_pool(
                2,
                RIVAL,
                cpu=Limit(guaranteed=40_000, lend=40_000),
                devices={"a100": Limit(guaranteed=2000, lend=lend), "t4": Limit(guaranteed=2000, lend=2000)},
            ),
        ]
        self.world = World.of(node(900, gpus=8, pool=OTHER_POOL), pools=pools, rules=PoolRules(sharing, shared_users))

    def record(self, name: str) -> NodeRecord:
        return next(one for _, one in self.world.snapshot.list_nodes(POOL) if one.name == name)

    def names(self) -> list[str]:
        return sorted(one.name for _, one in self.world.snapshot.list_nodes(POOL))

    @rule(
        gpus=st.integers(0, 5),
        flavor=st.sampled_from(["a100", "t4"]),
        cpu=st.sampled_from([2_000, 20_000]),
        isolation=st.sampled_from([Isolation.NONE, Isolation.USER]),
        divided=st.booleans(),
    )
    def add_node(self, gpus: int, flavor: str, cpu: int, isolation: Isolation, divided: bool = False) -> None:
        self.last_node += 1
        memory = 40_000 if flavor == "t4" else 81_920
        tflops = (("bf16_tflops", 312.0),) if flavor == "a100" else ()
        added = node(
            self.last_node,
            gpus,
            cpu=cpu,
            flavor=flavor,
            device_memory=memory,
            attributes=tflops,
            isolation=isolation,
            divided="A100 SXM4 80GB" if divided and flavor == "a100" else None,
        )
        self.world.snapshot.upsert_node(added)

    @rule(wanted=requests(), times=st.integers(1, 4), priority=st.sampled_from([10, 50]))
    def submit(self, wanted: RequestClass, times: int, priority: int) -> None:
        self.world.submit(wanted, times, priority=priority)

    @rule(wanted=requests(), size=st.integers(1, 6), priority=st.sampled_from([10, 50]))
    def submit_gang(self, wanted: RequestClass, size: int, priority: int) -> None:
        self.world.submit_gang(wanted, size, priority=priority)

    @rule(minutes=st.integers(0, 20))
    def wait(self, minutes: int) -> None:
        self.world.now_us += minutes * 60 * SECOND_US

    @rule(max_tasks=st.sampled_from([1, 500]))
    def cycle(self, max_tasks: int) -> None:
        before = contents(self.world.snapshot)
        waiting = {task.id: task.gang for task in self.world.queue}
        self.stopping_before, self.usage_before = set(self.world.stopping), self.world.usage()
        trial = self.world.plan(max_tasks)
        self.world.snapshot.undo_to(trial.mark)
        assert contents(self.world.snapshot) == before, "undo restores equality"
        plan = self.world.run(max_tasks)
        assert plan.placements == trial.placements, "same input, same plan"
        assert plan.rejections == trial.rejections
        assert plan.earmarks == trial.earmarks
        assert plan.reclaims == trial.reclaims
        self.running += placed_tasks(plan)
        self.check_plan(plan)
        self.check_reclaims(plan)
        placed = Counter(waiting[task] for task in placed_tasks(plan))
        assert all(gang is None or count == gang.size for gang, count in placed.items()), "a gang starts whole"

    def check_reclaims(self, plan: Plan) -> None:
        """Every victim is claimed once, belongs to somebody else who borrows, and its gang stops with it."""
        victims = [victim for reclaim in plan.reclaims for victim in reclaim.victims]
        assert len(victims) == len(set(victims))
        assert self.stopping_before.isdisjoint(victims)
        for reclaim in plan.reclaims:
            assert plan.rejections[reclaim.claimant].reason is Reason.RECLAIMING
            for victim in reclaim.victims:
                owner = self.world.owner[victim]
                assert owner != self.world.owner[reclaim.claimant]
                used, limit_of = self.usage_before[owner], self.world.pools[owner].limit_of
                assert any(amount > limit_of(resource).guaranteed for resource, amount in used.items())
                gang = self.world.submitted[victim].gang
                live = [task.id for task in self.world.list_running() if self.world.submitted[task.id].gang == gang]
                assert gang is None or set(live) <= self.world.stopping

    def check_plan(self, plan: Plan) -> None:
        nodes = {record.id: record for _, record in self.world.snapshot.list_nodes()}
        for placement in plan.placements:
            record = nodes[placement.holding.node]
            assert record.pool == POOL
            assert record.state is NodeState.READY
            assert not record.cordons
            assert placement.incarnation == record.incarnation
        for rejection in plan.rejections.values():
            assert sum(rejection.counts.values()) == len(self.names())
            if rejection.reason in CAPACITY_REASONS:
                assert Reason.PLACEABLE not in rejection.counts

    @rule(gpus=st.integers(1, 4), gang=st.integers(0, 3), asked=st.integers(1, 2))
    def lend_out_and_ask_back(self, gpus: int, gang: int, asked: int) -> None:
        """What leads to a reclaim most of the time, and would hardly come about by single steps."""
        self.add_node(gpus, "a100", 20_000, Isolation.USER)
        borrows = request(500, 512, count=1, tenant=TENANT)
        if gang:
            self.world.submit_gang(borrows, gang, priority=90)
        self.world.submit(borrows, gpus, priority=90)
        self.cycle(500)
        self.world.submit(request(500, 512, count=1, tenant=RIVAL), asked, priority=10)
        self.cycle(500)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.running))
        self.running.remove(task)
        self.world.release(task)

    @precondition(lambda self: self.world.stopping)
    @rule()
    def stopped_tasks_end(self) -> None:
        self.running = [task for task in self.running if task not in self.world.stopping]
        self.world.release_stopping()

    @precondition(lambda self: self.names())
    @rule(data=st.data(), cordoned=st.booleans())
    def cordon_or_drain(self, data: st.DataObject, cordoned: bool) -> None:
        record = self.record(data.draw(st.sampled_from(self.names())))
        reasons = frozenset({data.draw(st.sampled_from([CordonReason.OPERATOR, CordonReason.DRAIN]))})
        self.change(record, cordons=reasons if cordoned else frozenset())

    @precondition(lambda self: self.names())
    @rule(data=st.data(), state=st.sampled_from([NodeState.READY, NodeState.UNREACHABLE]))
    def change_state(self, data: st.DataObject, state: NodeState) -> None:
        self.change(self.record(data.draw(st.sampled_from(self.names()))), state=state)

    @precondition(lambda self: self.names())
    @rule(data=st.data())
    def break_or_mend_a_device(self, data: st.DataObject) -> None:
        record = self.record(data.draw(st.sampled_from(self.names())))
        if record.devices:
            slot = data.draw(st.integers(0, len(record.devices) - 1))
            devices = list(record.devices)
            devices[slot] = replace(devices[slot], usable=not devices[slot].usable)
            self.change(record, devices=tuple(devices))

    def change(self, record: NodeRecord, **changes: Any) -> None:
        assert self.world.snapshot.upsert_node(replace(record, version=record.version + 1, **changes))

    @precondition(lambda self: self.names())
    @rule(data=st.data())
    def lose_node(self, data: st.DataObject) -> None:
        record = self.record(data.draw(st.sampled_from(self.names())))
        self.world.snapshot.remove_node(record.id)
        self.lost.append(record)

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def node_returns(self, data: st.DataObject) -> None:
        record = self.lost.pop(data.draw(st.integers(0, len(self.lost) - 1)))
        returned = replace(record, incarnation=record.incarnation + 1, version=record.version + 1)
        self.world.snapshot.upsert_node(returned)

    @invariant()
    def nothing_is_exceeded(self) -> None:
        check_invariants(self.world)

    @invariant()
    def the_other_pool_is_untouched(self) -> None:
        assert not self.world.snapshot.list_holdings(NodeId(int=900 << 65))

    @invariant()
    def free_is_what_open_nodes_have_and_nobody_holds(self) -> None:
        snapshot = self.world.snapshot
        nodes = [record for _, record in snapshot.list_nodes(POOL)]
        takers = [one for one in nodes if one.state is NodeState.READY and not one.cordons]
        held = [holding for record in takers for holding in snapshot.list_holdings(record.id)]
        free = sum_free(snapshot, POOL)
        assert free[CPU] == sum(one.cpu_milli for one in takers) - sum(one.cpu_milli for one in held)
        assert free[MEMORY] == sum(one.memory_mib for one in takers) - sum(one.memory_mib for one in held)

    @invariant()
    def slices_of_tenants_lie_apart_where_the_pool_says_so(self) -> None:
        rules = self.world.snapshot.rules_of(POOL)
        for _, record in self.world.snapshot.list_nodes(POOL):
            held = self.world.snapshot.list_holdings(record.id)
            if record.isolation is Isolation.NONE and not rules.allow_shared_users:
                assert len({one.tenant for one in held}) <= 1
            if rules.device_sharing is DeviceSharing.SAME_TENANT:
                for this in record.devices:
                    sharing = {one.tenant for one in held if any(pick.device == this.id for pick in one.devices)}
                    assert len(sharing) <= 1

    @invariant()
    def a_rebuilt_snapshot_is_the_same(self) -> None:
        rebuilt = Snapshot({POOL: self.world.snapshot.rules_of(POOL)})
        for holding in self.world.snapshot.list_holdings():
            rebuilt.apply_allocation(holding)
        for _, record in self.world.snapshot.list_nodes():
            rebuilt.upsert_node(record)
        wanted = request(count=1, milli=500)
        counts = [Candidates(one, wanted).count_reasons() for one in (rebuilt, self.world.snapshot)]
        assert counts[0] == counts[1]


# Ten thousand steps, which take a minute.
TestPoolMachine = pytest.mark.timeout(600)(PoolMachine.TestCase)
TestPoolMachine.settings = settings(max_examples=256, stateful_step_count=40, deadline=None)
