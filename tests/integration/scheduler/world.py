"""A small world for the scheduler's tests: pools, nodes, virtual pools, jobs, and an agent that obeys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from redis.asyncio import Redis

from millpond_contracts.bodies.bills import PriceLine, PriceVersionView
from millpond_contracts.bodies.groups import DeviceRequest, GroupSpec, Requirements, Resources, RunSpec
from millpond_contracts.bodies.jobs import JobSpec, JobView, RetrySpec
from millpond_contracts.bodies.nodes import CordonReason, DeviceView, DrainView, NodeState, NodeView
from millpond_contracts.bodies.pools import DeviceSharing, NodeSelector, PoolIsolation, PoolView
from millpond_contracts.bodies.scaling import NodeTemplate, ScalingPolicyView, ScalingRules
from millpond_contracts.bodies.tenants import Limit, Limits, ProjectView, QueuePolicy, Role, VirtualPoolView
from millpond_contracts.bodies.work import (
    Assignment,
    HeldAllocation,
    PollAnswer,
    PollRequest,
    ReportAnswer,
    ReportBatch,
    ReportKind,
    TaskReport,
)
from millpond_contracts.ids import (
    DeviceId,
    JobId,
    NodeId,
    PoolId,
    PriceBookId,
    PriceVersionId,
    ProjectId,
    ScalingPolicyId,
    TenantId,
    VirtualPoolId,
)
from millpond_contracts.quantities import ExactDecimal
from millpond_contracts.resources import DeviceHealth, DeviceKind, Isolation
from millpond_kernel.db import SYSTEM, Database, TenantScope
from millpond_kernel.doorbell import DoorListener
from millpond_kernel.gathering import Gatherer
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_scheduler.app import gather_reports
from millpond_scheduler.domain.quarantine import QuarantineRules
from millpond_scheduler.loops.leader import Leader, LeaderPolicy
from millpond_scheduler.providers.bells import NodeBell
from millpond_scheduler.store.views import write_project
from millpond_scheduler.usecases.growth import take_scaling_policy
from millpond_scheduler.usecases.jobs import cancel_job, submit_job
from millpond_scheduler.usecases.nodes import take_node, take_pool
from millpond_scheduler.usecases.prices import take_price
from millpond_scheduler.usecases.recount import recount
from millpond_scheduler.usecases.virtual_pools import take_virtual_pool
from millpond_scheduler.usecases.work import NodeCall, OrdersAsked, read_orders, take_poll

START = datetime(2030, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
SECRET = "s3cr3t-value-of-the-environment"


def make_device(flavor: str = "t4", memory_mib: int | None = 16_000) -> DeviceView:
    identity = DeviceId.new()
    return DeviceView(
        device_id=identity,
        identity=f"nvidia/GPU-{identity}",
        index=0,
        kind=DeviceKind.GPU,
        vendor="nvidia",
        model="T4",
        model_key="t4",
        flavor=flavor,
        memory_mib=memory_mib,
        health=DeviceHealth.HEALTHY,
    )


def make_spec(virtual_pool: VirtualPoolId, **changes: Any) -> JobSpec:
    """A job of one group; parts may be given: `count`, `cpu`, `devices`, `retry`, `priority`, `gang`, `requires` …"""
    devices = changes.get("devices")
    group = GroupSpec(
        name="main",
        count=changes.get("count", 1),
        gang=changes.get("gang", False),
        resources=Resources(
            cpu_milli=changes.get("cpu", 1000),
            memory_mib=changes.get("memory", 1024),
            devices=() if devices is None else (devices,),
        ),
        requires=changes.get("requires", Requirements()),
        run=RunSpec(command=("/bin/true", SECRET), env={"TOKEN": SECRET}, image=changes.get("image")),
        stop_grace_seconds=7,
    )
    return JobSpec(
        name=changes.get("name", "train"),
        virtual_pool=virtual_pool,
        priority=changes.get("priority", 50),
        groups=(group,),
        time_limit_seconds=changes.get("time_limit"),
        retry=changes.get("retry", RetrySpec()),
        labels=changes.get("labels", {}),
        project_id=changes.get("project"),
    )


ONE_DEVICE = DeviceRequest()


def limits(cpu: int = 1_000_000, memory: int = 10_000_000, devices: int = 1_000_000, flavor: str = "t4") -> Limits:
    return Limits(
        cpu=Limit(guaranteed=cpu), memory=Limit(guaranteed=memory), devices={flavor: Limit(guaranteed=devices)}
    )


@dataclass
class World:
    """One pool, whose nodes and virtual pools the test adds; everything goes through the use cases."""

    database: Database
    redis: Redis
    prefix: str
    pool: PoolView = field(init=False)
    nodes: dict[NodeId, NodeView] = field(default_factory=dict)
    boots: dict[NodeId, str] = field(default_factory=dict)
    prices: dict[PriceVersionId, PriceVersionView] = field(default_factory=dict)
    scaling_policy: ScalingPolicyId = field(default_factory=ScalingPolicyId.new)
    clock_ms: int = 1_000_000
    sequence: int = 0

    @cached_property
    def _reports(self) -> Gatherer[tuple[NodeCall, ReportBatch], ReportAnswer | ProblemError]:
        # At the first report: a test may open another database before it.
        return gather_reports(self.database, QuarantineRules())

    async def open(self, **pool: Any) -> None:
        self.pool = PoolView(
            pool_id=PoolId.new(),
            name="main",
            priority=0,
            selector=NodeSelector(),
            performance_class="standard",
            region=None,
            zone=None,
            isolation=PoolIsolation.SHARED,
            tenant_id=None,
            device_sharing=DeviceSharing.SAME_TENANT,
            allow_oversubscription=False,
            allow_shared_users=True,
            unreachable_after_seconds=pool.get("unreachable_after_seconds", 30),
            lease_seconds=pool.get("lease_seconds", 300),
            stop_grace_seconds=pool.get("stop_grace_seconds", 30),
            reference_task_milli=1000,
            labels={},
            created_at=START,
            generation=1,
        )
        async with self.database.begin(SYSTEM) as unit:
            await take_pool(unit, self.pool)

    async def add_node(
        self, devices: int = 0, cpu: int = 8000, memory: int = 32_000, *, polls: bool = True, **changes: Any
    ) -> NodeView:
        node = NodeView(
            node_id=NodeId.new(),
            pool_id=self.pool.pool_id,
            name=f"node-{len(self.nodes)}",
            state=NodeState.READY,
            state_since=START,
            schedulable=True,
            incarnation=1,
            boot_id="boot-1",
            arch="x86_64",
            cpu_milli=cpu,
            memory_mib=memory,
            devices=tuple(make_device() for _ in range(devices)),
            runtimes=("process",),
            isolation=Isolation.USER,
            created_at=START,
            generation=1,
        ).model_copy(update=changes)
        await self.tell_node(node)
        self.boots[node.node_id] = "boot-1"
        if polls:
            await self.poll(node.node_id)
        return node

    async def tell_node(self, node: NodeView) -> None:
        self.nodes[node.node_id] = node
        async with self.database.begin(SYSTEM) as unit:
            await take_node(unit, node)

    async def change_node(self, node: NodeId, **changes: Any) -> NodeView:
        before = self.nodes[node]
        after = before.model_copy(update={**changes, "generation": before.generation + 1})
        await self.tell_node(after)
        return after

    async def drain(self, node: NodeId, deadline: datetime) -> NodeView:
        generation = self.nodes[node].generation + 1
        return await self.change_node(
            node,
            schedulable=False,
            cordon_reasons=(CordonReason.DRAIN,),
            drain=DrainView(generation=generation, deadline=deadline, reason=CordonReason.DRAIN),
        )

    async def add_virtual_pool(
        self,
        tenant: TenantId | None = None,
        given: Limits | None = None,
        generation: int = 1,
        policy: QueuePolicy = QueuePolicy.PRIORITY,
    ) -> VirtualPoolView:
        view = VirtualPoolView(
            virtual_pool_id=VirtualPoolId.new(),
            tenant_id=tenant or TenantId.new(),
            pool_id=self.pool.pool_id,
            name="share",
            limits=given or limits(),
            policy=policy,
            labels={},
            created_at=START,
            generation=generation,
        )
        await self.tell_virtual_pool(view)
        return view

    async def tell_virtual_pool(self, view: VirtualPoolView) -> None:
        async with self.database.begin(SYSTEM) as unit:
            await take_virtual_pool(unit, view)

    async def add_project(self, tenant: TenantId) -> ProjectId:
        project = ProjectView(
            project_id=ProjectId.new(), tenant_id=tenant, name="vision", labels={}, created_at=START, generation=1
        )
        async with self.database.begin(SYSTEM) as unit:
            await write_project(unit, project, deleted=False)
        return project.project_id

    async def add_price(
        self,
        tenant: TenantId | None = None,
        valid_from: datetime = LONG_AGO,
        per_hour: Mapping[str, str] | None = None,
    ) -> PriceVersionId:
        price = PriceVersionView(
            price_version_id=PriceVersionId.new(),
            price_book_id=PriceBookId.new(),
            tenant_id=tenant,
            currency="CNY",
            valid_from=valid_from,
            valid_to=None,
            minimum_seconds=60,
            lines=tuple(PriceLine(sku=sku, per_hour=ExactDecimal(price)) for sku, price in (per_hour or {}).items()),
            note="",
            created_at=LONG_AGO,
            generation=1,
        )
        self.prices[price.price_version_id] = price
        await self.tell_price(price)
        return price.price_version_id

    async def tell_price(self, price: PriceVersionView) -> None:
        async with self.database.begin(SYSTEM) as unit:
            await take_price(unit, price)

    async def tell_scaling_policy(self, max_nodes: int, flavor: str = "t4", generation: int = 1) -> None:
        policy = ScalingPolicyView(
            scaling_policy_id=self.scaling_policy,
            name="grow",
            pool_id=self.pool.pool_id,
            flavor=flavor,
            template=NodeTemplate(model="A100 SXM4 80GB", devices=1, cpu_milli=8000, memory_mib=32_000),
            rules=ScalingRules(max_nodes=max_nodes),
            enabled=True,
            created_at=START,
            generation=generation,
        )
        async with self.database.begin(SYSTEM) as unit:
            await take_scaling_policy(unit, policy, deleted=False)

    async def submit(self, share: VirtualPoolView, **changes: Any) -> JobView:
        caller = member(share.tenant_id)
        async with self.database.begin(TenantScope(share.tenant_id)) as unit:
            return await submit_job(unit, caller, make_spec(share.virtual_pool_id, **changes))

    async def cancel(self, share: VirtualPoolView, job: JobId) -> JobView:
        async with self.database.begin(SYSTEM) as unit:
            view, _ = await cancel_job(unit, member(share.tenant_id), job)
        return view

    def leader(self, **rules: Any) -> Leader:
        return Leader(
            self.database,
            NodeBell(self.redis, self.prefix),
            DoorListener(self.redis, f"{self.prefix}:test"),
            LeaderPolicy(**{"verdict_seconds": 0.0, **rules}),
        )

    async def poll(
        self, node: NodeId, held: list[Assignment] | None = None, *, incarnation: int | None = None
    ) -> PollAnswer:
        request = PollRequest(
            boot_id=self.boots.get(node, "boot-1"),
            sent_monotonic_ms=self.clock_ms,
            held=[HeldAllocation(allocation_id=item.allocation_id, epoch=item.epoch) for item in held or []],
            wait_seconds=0,
        )
        call = NodeCall(node, self.pool.pool_id, incarnation or self.nodes[node].incarnation)
        async with self.database.begin(SYSTEM) as unit:
            taken = await take_poll(unit, call, request)
            if taken.is_at_peace:
                return taken.nothing()
            asked = OrdersAsked(node, request.held, taken.lease_seconds, fresh_only=False)
            (answer,) = await read_orders(unit, [asked])
        assert answer is not None
        return answer

    def make_report(self, assignment: Assignment, kind: ReportKind, **changes: Any) -> TaskReport:
        self.sequence += 1
        body = {
            "allocation_id": assignment.allocation_id,
            "epoch": assignment.epoch,
            "sequence": self.sequence,
            "kind": kind,
            "boot_id": "boot-1",
            "at_monotonic_ms": self.clock_ms,
        }
        return TaskReport.model_validate({**body, **changes})

    async def report(self, node: NodeId, *reports: TaskReport) -> ReportAnswer:
        batch = ReportBatch(
            boot_id=self.boots.get(node, "boot-1"), sent_monotonic_ms=self.clock_ms, reports=list(reports)
        )
        call = NodeCall(node, self.pool.pool_id, self.nodes[node].incarnation)
        answer = await self._reports.ask((call, batch))
        if isinstance(answer, ProblemError):
            raise answer
        return answer

    async def run_task(self, node: NodeId, assignment: Assignment) -> None:
        """The agent starts an assignment and confirms that it runs."""
        await self.report(
            node,
            self.make_report(assignment, ReportKind.STARTING),
            self.make_report(assignment, ReportKind.ACTIVE),
        )

    async def end_task(self, node: NodeId, assignment: Assignment, exit_code: int = 0, **changes: Any) -> None:
        await self.report(node, self.make_report(assignment, ReportKind.RELEASED, exit_code=exit_code, **changes))

    async def fetch(self, statement: str, *arguments: object) -> list[Any]:
        async with self.database.begin(SYSTEM) as unit:
            return await unit.fetch(statement, *arguments)

    async def value(self, statement: str, *arguments: object) -> Any:
        async with self.database.begin(SYSTEM) as unit:
            return await unit.fetchval(statement, *arguments)

    async def events(self, kind: str) -> list[dict[str, Any]]:
        rows = await self.fetch("SELECT body FROM outbox WHERE type = $1 ORDER BY id", f"scheduler.{kind}.v1")
        return [row["body"] for row in rows]

    async def job_state(self, job: JobId) -> str:
        return str(await self.value("SELECT state FROM job WHERE id = $1", job))

    async def assert_counters_are_true(self) -> None:
        """Usage and guards equal the sum of live allocations: a recount finds nothing."""
        async with self.database.begin(SYSTEM) as unit:
            assert await recount(unit) == 0


def member(tenant: TenantId | None) -> Principal:
    return Principal(role=Role.MEMBER if tenant else Role.OPERATOR, subject="tester", expires_at=9e9, tenant_id=tenant)
