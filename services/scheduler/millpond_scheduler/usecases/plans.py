"""Plans: what would become of a job that is submitted now, with its price. Nothing is changed and nothing is held."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from millpond_contracts.bodies.groups import GroupSpec
from millpond_contracts.bodies.jobs import JobSpec
from millpond_contracts.bodies.plans import (
    Offer,
    OfferPart,
    OfferPrice,
    OfferQuote,
    PlanView,
    RankView,
)
from millpond_contracts.bodies.verdicts import Verdict
from millpond_contracts.dependencies import find_stages
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import JobId, PoolId, ProjectId, TaskId, TenantId
from millpond_contracts.prices import (
    EXACT,
    SMALLEST_PER_UNIT,
    Quote,
    QuoteLine,
    Resource,
    Sku,
    quote,
)
from millpond_contracts.quantities import ExactDecimal, Money
from millpond_contracts.resources import Topology
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain import offers
from millpond_scheduler.domain.offers import AskedTask, DryRunner
from millpond_scheduler.domain.requests import Gang, QueuedTask
from millpond_scheduler.domain.topology import common_place
from millpond_scheduler.store import views
from millpond_scheduler.store.jobs import work_of
from millpond_scheduler.usecases.distances import distance_view
from millpond_scheduler.usecases.jobs import find_project
from millpond_scheduler.usecases.mirror import Mirror
from millpond_scheduler.usecases.records import (
    EPOCH,
    bind_whole_job,
    longest_us,
    microseconds_of,
    placement_rules,
    request_class,
)
from millpond_scheduler.usecases.verdicts import verdict_body

# Prices of an offer are told to hold for so long at most; what is free may be gone at once.
OFFER_SECONDS = 60
_UNITS: Mapping[Resource, str] = {Resource.DEVICE: "device", Resource.CPU: "core", Resource.MEMORY: "GiB"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A job that is asked about, once it is known that its owner could submit it."""

    spec: JobSpec
    tenant: TenantId
    pool: PoolId
    project: ProjectId | None
    shows_nodes: bool


async def read_asked(unit: UnitOfWork, caller: Principal, spec: JobSpec) -> Asked:
    """The job with whose it would be and where it would queue; refused as a submit would be.

    Raises:
        ProblemError: 404 for a virtual pool or a project that this tenant does not have.
    """
    virtual_pool = await views.find_virtual_pool(unit, spec.virtual_pool)
    if virtual_pool is None:
        raise ProblemError(ErrorCode.VIRTUAL_POOL_UNKNOWN, f"There is no virtual pool {spec.virtual_pool}.")
    tenant = TenantId.of(virtual_pool["tenant_id"])
    project = await find_project(unit, caller, spec, tenant)
    return Asked(spec, tenant, PoolId.of(virtual_pool["pool_id"]), project, shows_nodes=caller.tenant_id is None)


def make_plan(mirror: Mirror, asked: Asked) -> PlanView:
    """Offers and, when tasks would wait, why. Computes only; may take a second for a job of thousands of tasks."""
    assert mirror.as_of is not None, "the mirror was refreshed"
    shard, now_us = mirror.shard, microseconds_of(mirror.as_of)
    ahead = tuple(task.queued for task in shard.waiting.values())
    runner = DryRunner(
        shard.snapshot,
        shard.cache,
        shard.virtual_pools,
        ahead,
        now_us,
        mirror.policy,
        shard.list_running,
        shard.list_claims(),
        shard.list_evictions(mirror.policy.evictions_per_hour, now_us),
        shard.horizon,
    )
    found = runner.run(_list_tasks(asked, now_us))
    return PlanView(
        as_of=mirror.as_of,
        virtual_pool_id=asked.spec.virtual_pool,
        pool_id=asked.pool,
        offers=[_offer(mirror, asked, each) for each in found.offers],
        explanation=None if found.explanation is None else Verdict.model_validate(verdict_body(found.explanation)),
    )


def _list_tasks(asked: Asked, now_us: int) -> list[AskedTask]:
    """The tasks as a submit would queue them."""
    job, spec = JobId.new(), asked.spec
    gang = Gang(job, tuple((group.name, group.count) for group in spec.groups if group.gang))
    stages = find_stages({group.name: group.after for group in spec.groups})
    return [
        AskedTask(
            group.name,
            QueuedTask(
                TaskId.new(),
                job,
                spec.virtual_pool,
                request,
                spec.priority,
                now_us,
                gang if group.gang else None,
                project=asked.project,
                work=work_of(spec, group),
                lasts_us=longest_us(spec.time_limit_seconds, group.stop_grace_seconds),
                group=group.name,
                labels=frozenset(spec.labels.items()),
                rules=rules,
            ),
            stages[group.name],
        )
        for group, stored in zip(spec.groups, bind_whole_job([_stored(each) for each in spec.groups]), strict=True)
        for request, rules in ((request_class(asked.tenant, asked.pool, stored), placement_rules(stored)),)
        for _ in range(group.count)
    ]


def _stored(group: GroupSpec) -> dict[str, Any]:
    """A group as the leader reads it of a stored job."""
    run = {"image": group.run.image, "simulated": group.run.simulate is not None}
    return {**group.model_dump(mode="json", exclude={"run"}), **run}


def _offer(mirror: Mirror, asked: Asked, found: offers.Offer) -> Offer:
    shard = mirror.shard
    as_of, nodes = mirror.as_of, {node for part in found.parts for node in part.nodes}
    assert as_of is not None, "the mirror was refreshed"
    quoted = quote(
        mirror.published, asked.tenant, amounts_of(found), microseconds_of(as_of), asked.spec.time_limit_seconds
    )
    after = {group.name: list(group.after) for group in asked.spec.groups}
    return Offer(
        pool_id=asked.pool,
        pool=shard.pools[asked.pool].name if asked.pool in shard.pools else "",
        flavors=list(found.flavors),
        tasks=found.starts_now + found.later + found.waiting,
        starts_now=found.starts_now,
        nodes=len(nodes),
        distance_permille=found.distance_permille,
        parts=[_part(mirror, part, after[part.group], shows_nodes=asked.shows_nodes) for part in found.parts],
        quote=None if quoted is None else _quote(mirror, asked, quoted, as_of),
        expires_at=_expires_at(as_of, quoted),
    )


def _part(mirror: Mirror, part: offers.OfferPart, after: list[str], *, shows_nodes: bool) -> OfferPart:
    records = [mirror.shard.snapshot.get_node(node) for node in part.nodes]
    return OfferPart(
        group=part.group,
        tasks=part.tasks,
        flavor=part.flavor,
        nodes=len(part.nodes),
        node_names=[record.name for record in records] if shows_nodes else [],
        topology=Topology(**asdict(common_place(record.place for record in records))),
        cpu_milli=part.cpu_milli,
        memory_mib=part.memory_mib,
        device_milli=part.device_milli,
        distance=None if part.distance is None else distance_view(part.distance),
        ranks=[RankView(name=name, value=value) for name, value in part.ranks],
        after=after,
    )


def amounts_of(offer: offers.Offer) -> dict[Sku, int]:
    """What all tasks that start, now or later, hold together, by SKU, in smallest units."""
    amounts: Counter[Sku] = Counter()
    for part in offer.parts:
        amounts[Sku(Resource.CPU)] += part.tasks * part.cpu_milli
        amounts[Sku(Resource.MEMORY)] += part.tasks * part.memory_mib
        if part.flavor is not None:
            amounts[Sku(Resource.DEVICE, part.flavor)] += part.tasks * part.device_milli
    return dict(amounts)


def _quote(mirror: Mirror, asked: Asked, found: Quote, as_of: datetime) -> OfferQuote | None:
    version = mirror.shard.price_for(asked.tenant, as_of)
    if version is None:
        return None
    return OfferQuote(
        per_hour=_money(found.per_hour, found.currency),
        total=None if found.total is None else _money(found.total, found.currency),
        minimum_seconds=found.minimum_seconds,
        price_version_id=version,
        lines=[_line(line, found.currency) for line in found.lines],
    )


def _line(line: QuoteLine, currency: str) -> OfferPrice:
    resource = line.sku.resource
    quantity = EXACT.divide(Decimal(line.amount), Decimal(SMALLEST_PER_UNIT[resource]))
    return OfferPrice(
        sku=str(line.sku),
        unit=_UNITS[resource],
        quantity=ExactDecimal(quantity),
        unit_per_hour=_money(line.unit_per_hour, currency),
        per_hour=_money(line.per_hour, currency),
        price_version_id=line.version,
    )


def _money(amount: Decimal, currency: str) -> Money:
    return Money(amount=ExactDecimal(amount), currency=currency)


def _expires_at(as_of: datetime, quoted: Quote | None) -> datetime:
    latest = as_of + timedelta(seconds=OFFER_SECONDS)
    if quoted is None or quoted.holds_until is None:
        return latest
    return min(latest, EPOCH + timedelta(microseconds=quoted.holds_until))
