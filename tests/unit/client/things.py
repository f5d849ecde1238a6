"""Objects as the services would show them, for tests of the client and the command line."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from millpond_contracts.bodies.bills import ChargeKind, ChargeView, StatementState, StatementView
from millpond_contracts.bodies.distances import DistancePartView, DistanceView
from millpond_contracts.bodies.groups import GroupSpec, Resources, RunSpec
from millpond_contracts.bodies.jobs import (
    GroupView,
    JobDetail,
    JobKind,
    JobSpec,
    JobState,
    JobView,
    TaskState,
    TaskView,
)
from millpond_contracts.bodies.nodes import CordonReason, NodeState, NodeView
from millpond_contracts.bodies.plans import Offer, OfferPart, OfferPrice, OfferQuote, PlanView
from millpond_contracts.bodies.pools import DeviceSharing, NodeSelector, PoolIsolation, PoolView
from millpond_contracts.bodies.tenants import (
    Limit,
    Limits,
    QueuePolicy,
    TenantState,
    TenantView,
    VirtualPoolView,
)
from millpond_contracts.bodies.verdicts import AdmissionView, Explanation, Unblock, Verdict
from millpond_contracts.ids import JobId, NodeId, PoolId, PriceVersionId, TaskId, TenantId, VirtualPoolId
from millpond_contracts.quantities import ExactDecimal, Money

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
TENANT, POOL, VIRTUAL_POOL, NODE = TenantId.new(), PoolId.new(), VirtualPoolId.new(), NodeId.new()


def tenant(name: str = "acme", tenant_id: TenantId = TENANT) -> TenantView:
    return TenantView(
        tenant_id=tenant_id,
        name=name,
        timezone="Asia/Shanghai",
        currency="CNY",
        state=TenantState.ACTIVE,
        labels={},
        created_at=NOW,
        generation=3,
    )


def pool(name: str = "default") -> PoolView:
    return PoolView(
        pool_id=POOL,
        name=name,
        priority=0,
        selector=NodeSelector(),
        performance_class="standard",
        region=None,
        zone=None,
        isolation=PoolIsolation.SHARED,
        tenant_id=None,
        device_sharing=DeviceSharing.SAME_TENANT,
        allow_oversubscription=False,
        allow_shared_users=False,
        unreachable_after_seconds=30,
        lease_seconds=300,
        stop_grace_seconds=30,
        reference_task_milli=1000,
        labels={},
        created_at=NOW,
        generation=1,
    )


def virtual_pool(
    name: str = "main", limits: Limits | None = None, virtual_pool_id: VirtualPoolId = VIRTUAL_POOL
) -> VirtualPoolView:
    return VirtualPoolView(
        virtual_pool_id=virtual_pool_id,
        tenant_id=TENANT,
        pool_id=POOL,
        name=name,
        limits=limits or Limits(cpu=Limit(guaranteed=2000), memory=Limit(guaranteed=4096)),
        policy=QueuePolicy.PRIORITY,
        labels={},
        created_at=NOW,
        generation=7,
    )


def node(name: str = "vm", *cordons: CordonReason) -> NodeView:
    return NodeView(
        node_id=NODE,
        pool_id=POOL,
        name=name,
        state=NodeState.READY,
        state_since=NOW,
        schedulable=not cordons,
        cordon_reasons=cordons,
        incarnation=1,
        boot_id="boot",
        arch="x86_64",
        cpu_milli=3900,
        memory_mib=15_872,
        created_at=NOW,
        generation=4,
    )


def job(
    name: str = "hello", state: JobState = JobState.RUNNING, job_id: JobId | None = None, created_at: datetime = NOW
) -> JobView:
    return JobView(
        job_id=job_id or JobId.new(),
        tenant_id=TENANT,
        project_id=None,
        virtual_pool_id=VIRTUAL_POOL,
        pool_id=POOL,
        name=name,
        kind=JobKind.BATCH,
        priority=50,
        state=state,
        state_since=created_at,
        reason=None,
        message=None,
        groups=[GroupView(name="main", count=1, by_state={state.value: 1})],
        labels={},
        created_at=created_at,
        started_at=None,
        ended_at=None,
        generation=1,
    )


def spec(name: str = "hello") -> JobSpec:
    group = GroupSpec(resources=Resources(cpu_milli=1000, memory_mib=512), run=RunSpec(command=("true",)))
    return JobSpec(name=name, virtual_pool=VIRTUAL_POOL, groups=(group,))


def detail(view: JobView) -> JobDetail:
    task = TaskView(
        task_id=TaskId.new(),
        job_id=view.job_id,
        group="main",
        index=0,
        attempt=1,
        state=TaskState(view.state.value),
        state_since=NOW,
        reason=None,
        message=None,
        exit_code=None,
        allocation=None,
    )
    return JobDetail(**dict(view), spec=spec(view.name), tasks=[task])


def explanation(job_id: JobId) -> Explanation:
    return Explanation(
        job_id=job_id,
        state=JobState.PENDING,
        as_of=NOW,
        dominant="limit_reached",
        message="the virtual pool's limit is reached",
        position=1,
        counts={"not_enough_cpu": 3, "not_ready": 1},
        nodes=4,
        admission=[
            AdmissionView(
                resource="memory", flavor=None, limit=4096, used=1024, borrowed=0, requested=8192, missing=5120
            )
        ],
        would_unblock=[Unblock(action="raise the limit of memory", effect="the job would start")],
    )


def offer(flavor: str | None = "a100", starts: int = 2, per_hour: str = "18.396", total: str | None = "9.198") -> Offer:
    part = DistancePartView(attribute="bf16_tflops", weight=4, wanted=300, offered=312, permille=9)
    line = OfferPrice(
        sku=f"device/{flavor}/on_demand",
        unit="device",
        quantity=ExactDecimal("2"),
        unit_per_hour=money("9"),
        per_hour=money("18"),
        price_version_id=PriceVersionId.new(),
    )
    return Offer(
        pool_id=POOL,
        pool="default",
        flavors=[] if flavor is None else [flavor],
        tasks=2,
        starts_now=starts,
        nodes=1,
        distance_permille=9,
        parts=[
            OfferPart(
                group="main",
                tasks=starts,
                flavor=flavor,
                nodes=1,
                cpu_milli=1000,
                memory_mib=1024,
                device_milli=1000,
                distance=DistanceView(permille=9, step=0, parts=[part]),
            )
        ],
        quote=OfferQuote(
            per_hour=money(per_hour),
            total=None if total is None else money(total),
            minimum_seconds=60,
            price_version_id=line.price_version_id,
            lines=[line],
        ),
        expires_at=NOW + timedelta(seconds=60),
    )


def plan(*offers: Offer, waits: bool = False) -> PlanView:
    reason = Verdict(dominant="not_enough_devices", message="no matching node has enough free devices", nodes=1)
    return PlanView(
        as_of=NOW,
        virtual_pool_id=VIRTUAL_POOL,
        pool_id=POOL,
        offers=list(offers),
        explanation=reason.model_copy(update={"counts": {"not_enough_devices": 1}}) if waits else None,
    )


def money(amount: str) -> Money:
    return Money(amount=ExactDecimal(Decimal(amount)), currency="CNY")


def statement(total: str = "0.01") -> StatementView:
    return StatementView(
        statement_id=None,
        tenant_id=TENANT,
        state=StatementState.DRAFT,
        number=None,
        period_start=datetime(2026, 10, 31, 16, tzinfo=UTC),
        period_end=datetime(2026, 11, 30, 16, tzinfo=UTC),
        as_of=NOW,
        timezone="Asia/Shanghai",
        currency="CNY",
        subtotals={ChargeKind.USAGE: money("0.00612"), ChargeKind.ROUNDING: money("0.00388")},
        total=money(total),
        lines=1,
        seconds=90,
        digest=None,
        closed_at=None,
    )


def charge(job_id: JobId, name: str = "hello", amount: str = "0.00612") -> ChargeView:
    return ChargeView(
        segment_id=None,
        allocation_id=None,
        job_id=job_id,
        job_name=name,
        project_id=None,
        pool_id=POOL,
        node_id=NODE,
        kind=ChargeKind.USAGE,
        sku="cpu/*/on_demand",
        quantity=ExactDecimal("2"),
        seconds=61,
        per_hour=ExactDecimal("0.18"),
        start_at=NOW,
        end_at=NOW + timedelta(seconds=61),
        amount=money(amount),
        price_version_id=None,
    )
