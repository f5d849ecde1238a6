"""Cost reports: what jobs, projects, tenants and pools used, against a fixed fleet; idle capacity is told apart."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from millpond_billing.domain.conservation import TimeState, held_spans, value_of_held
from millpond_billing.domain.fleets import Costs, Fleet, Placed
from millpond_billing.domain.prices import PriceBook
from millpond_billing.domain.timeline import instant_of
from millpond_billing.store.allocations import list_held_between, list_held_on, timeline_of
from millpond_billing.store.capacity import list_node_batches, list_spans
from millpond_billing.store.charge_sums import ChargeFilter, GroupRow
from millpond_billing.store.prices import book_currency, load_price_book
from millpond_billing.usecases.charge_sums import SumPlace, SumQuery, group_charges
from millpond_billing.usecases.reconciliations import held_of
from millpond_contracts.bodies.allocations import AllocationView
from millpond_contracts.bodies.bills import CostGroup, CostKey, CostReport, FlavorUse, FleetCost, FleetShare
from millpond_contracts.ids import JobId, PoolId, ProjectId, TenantId
from millpond_contracts.prices import EXACT, SMALLEST_PER_UNIT, UNITS, Sku, exact_sum, ratio_of
from millpond_contracts.quantities import ExactDecimal
from millpond_kernel.pagination import encode_cursor
from millpond_kernel.uow import UnitOfWork

_MICROSECONDS_PER_HOUR = 3_600_000_000


@dataclass(frozen=True, slots=True)
class CostQuery:
    """A report over `[start, end)`, up to now at most; of one tenant, or (null) of all with their fleet."""

    tenant_id: TenantId | None
    start: datetime
    end: datetime
    group_by: CostKey


@dataclass(slots=True)
class _Group:
    used: Decimal = Decimal(0)
    held_unbilled: Decimal = Decimal(0)
    charged: Decimal = Decimal(0)
    job_name: str | None = None


@dataclass(slots=True)
class _Groups:
    """Groups by key: `+` and an id, or nothing where there is none, as the sums of charges have them."""

    by: CostKey
    found: dict[str, _Group] = field(default_factory=dict)

    def add_held(self, allocation: AllocationView, values: Sequence[tuple[TimeState, Decimal]]) -> None:
        group = self._of(_key(allocation, self.by), allocation.job_name)
        for state, value in values:
            if state is TimeState.ACTIVE:
                group.used = EXACT.add(group.used, value)
            else:
                group.held_unbilled = EXACT.add(group.held_unbilled, value)

    def add_charges(self, row: GroupRow) -> None:
        group = self._of(row.key[0], row.job_name)
        group.charged = EXACT.add(group.charged, row.amount)

    def _of(self, key: str, job_name: str | None) -> _Group:
        group = self.found.setdefault(key, _Group())
        group.job_name = job_name
        return group


async def report_costs(unit: UnitOfWork, query: CostQuery, place: SumPlace | None, limit: int) -> CostReport:
    """A page of groups, by their ids, with the sums of all of them and, for operators, the fleet."""
    book = await load_price_book(unit)
    groups = _Groups(query.group_by)
    await _add_held(unit, query, book, groups)
    wanted = ChargeFilter(tenant_id=query.tenant_id)
    sums = SumQuery(wanted, query.start, query.end, query.end, None, (query.group_by.value,))
    for row in await group_charges(unit, sums):
        groups.add_charges(row)
    keys = sorted(key for key in groups.found if place is None or key > place.after[0])
    shown = keys[:limit]
    following = None
    if len(keys) > limit:
        following = encode_cursor(str(SumPlace(query.end, query.end, (shown[-1],))))
    every = groups.found.values()
    return CostReport(
        items=[_view(key, groups.found[key], query.group_by) for key in shown],
        next_cursor=following,
        start_at=query.start,
        end_at=query.end,
        currency=book_currency(book),
        group_by=query.group_by,
        fleet=await _fleet(unit, query, book) if query.tenant_id is None else None,
        used=ExactDecimal(exact_sum(one.used for one in every)),
        held_unbilled=ExactDecimal(exact_sum(one.held_unbilled for one in every)),
        charged=ExactDecimal(exact_sum(one.charged for one in every)),
    )


async def _add_held(unit: UnitOfWork, query: CostQuery, book: PriceBook, groups: _Groups) -> None:
    start, end = instant_of(query.start), instant_of(query.end)
    async for allocation in list_held_between(unit, query.tenant_id, query.start, query.end):
        timeline = timeline_of(allocation)
        for sku in timeline.skus():
            values = value_of_held(held_spans(timeline, sku, end), start, end, book, sku)
            groups.add_held(allocation, list(values.items()))


def _key(allocation: AllocationView, by: CostKey) -> str:
    value: UUID | None = {
        CostKey.JOB: allocation.job_id,
        CostKey.PROJECT: allocation.project_id,
        CostKey.TENANT: allocation.tenant_id,
        CostKey.POOL: allocation.pool_id,
    }[by]
    return "" if value is None else f"+{UUID(int=value.int)}"


def _view(key: str, group: _Group, by: CostKey) -> CostGroup:
    value = UUID(key[1:]) if key else None
    return CostGroup(
        tenant_id=TenantId.of(value) if value is not None and by is CostKey.TENANT else None,
        project_id=ProjectId.of(value) if value is not None and by is CostKey.PROJECT else None,
        job_id=JobId.of(value) if value is not None and by is CostKey.JOB else None,
        job_name=group.job_name if by is CostKey.JOB else None,
        pool_id=PoolId.of(value) if value is not None and by is CostKey.POOL else None,
        used=ExactDecimal(group.used),
        held_unbilled=ExactDecimal(group.held_unbilled),
        charged=ExactDecimal(group.charged),
    )


async def _fleet(unit: UnitOfWork, query: CostQuery, book: PriceBook) -> FleetCost:
    """All nodes of the interval, a batch of them in memory at a time."""
    end = instant_of(query.end)
    fleet = Fleet(instant_of(query.start), end, book)
    nodes, left_out = 0, list[str]()
    for batch in await list_node_batches(unit, query.start, query.end):
        nodes += len(batch)
        offered = await list_spans(unit, batch, query.start, query.end)
        holding = await list_held_on(unit, batch, query.start, query.end)
        for node_id in batch:
            holders = [(one, timeline_of(one)) for one in holding[node_id]]
            for name, (text, spans) in offered[node_id].items():
                sku = Sku.parse(text)
                held = [one for holder in holders for one in held_of(name, sku.resource, holder, end)]
                placed = [Placed(span.capacity, span.pool_id, span.market) for span in spans]
                if not fleet.add(sku, placed, held):
                    left_out.append(f"{node_id}/{name}")
    return _fleet_view(fleet, nodes, left_out)


def _fleet_view(fleet: Fleet, nodes: int, left_out: list[str]) -> FleetCost:
    total = fleet.total
    return FleetCost(
        nodes=nodes,
        fixed=ExactDecimal(fleet.fixed),
        provided=ExactDecimal(total.provided),
        saved=ExactDecimal(EXACT.subtract(fleet.fixed, total.provided)),
        used=ExactDecimal(total.by_state[TimeState.ACTIVE]),
        held_unbilled=ExactDecimal(total.held_unbilled),
        idle=ExactDecimal(total.by_state[TimeState.IDLE]),
        unavailable=ExactDecimal(total.by_state[TimeState.UNAVAILABLE]),
        unused_commitment=ExactDecimal(fleet.unused_commitment),
        utilisation=_ratio(total.by_state[TimeState.ACTIVE], total.provided),
        shares=[_share(pool_id, market.value, costs) for (pool_id, market), costs in fleet.ordered_shares().items()],
        flavors=[_flavor(sku, *amounts) for sku, amounts in sorted(fleet.amounts.items())],
        left_out=left_out,
    )


def _share(pool_id: PoolId, market: str, costs: Costs) -> FleetShare:
    return FleetShare(
        pool_id=pool_id,
        market=market,
        provided=ExactDecimal(costs.provided),
        used=ExactDecimal(costs.by_state[TimeState.ACTIVE]),
        held_unbilled=ExactDecimal(costs.held_unbilled),
        idle=ExactDecimal(costs.by_state[TimeState.IDLE]),
        unavailable=ExactDecimal(costs.by_state[TimeState.UNAVAILABLE]),
        utilisation=_ratio(costs.by_state[TimeState.ACTIVE], costs.provided),
    )


def _flavor(sku: Sku, provided: int, used: int) -> FlavorUse:
    whole = Decimal(SMALLEST_PER_UNIT[sku.resource] * _MICROSECONDS_PER_HOUR)
    return FlavorUse(
        resource=sku.resource.value,
        flavor=sku.flavor,
        unit=UNITS[sku.resource],
        provided_hours=ExactDecimal(ratio_of(Decimal(provided), whole)),
        used_hours=ExactDecimal(ratio_of(Decimal(used), whole)),
        utilisation=_ratio(Decimal(used), Decimal(provided)),
    )


def _ratio(part: Decimal, whole: Decimal) -> ExactDecimal | None:
    return ExactDecimal(ratio_of(part, whole)) if whole else None
