"""Exact sums of charges by anything: one statement over what is written and what is given to it, such as what runs.

A piece of a segment is charged by the same products as the whole (`domain/rating.py`): usage by its microseconds, all
else by the whole seconds that begin in it, which telescope. So any division sums to what is written, digit by digit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from typing import Self

from millpond_billing.domain.buckets import Bucket
from millpond_billing.domain.rating import RatedSegment
from millpond_billing.domain.statements import Adjustment
from millpond_billing.domain.timeline import moment_of
from millpond_contracts.bodies.allocations import AllocationView
from millpond_contracts.bodies.bills import ChargeKind
from millpond_contracts.ids import AllocationId, JobId, NodeId, PoolId, ProjectId, TenantId
from millpond_kernel.uow import UnitOfWork

# What is summed, in the order of the columns.
CAUSES = (
    ChargeKind.USAGE,
    ChargeKind.ROUND_UP,
    ChargeKind.MINIMUM,
    ChargeKind.PRICE_DIFFERENCE,
    ChargeKind.WAIVER,
    ChargeKind.ADJUSTMENT,
)
EVERY_ZONE = ""


@dataclass(frozen=True, slots=True)
class ChargeFilter:
    """Which charges: those of what is named, and with all of the labels (null = with the label, whatever its value)."""

    tenant_id: TenantId | None = None
    project_id: ProjectId | None = None
    job_id: JobId | None = None
    pool_id: PoolId | None = None
    node_id: NodeId | None = None
    flavor: str | None = None
    labels: Sequence[tuple[str, str | None]] = ()


@dataclass(frozen=True, slots=True)
class SumRange:
    """When: `[start, end)`, divided into buckets by zone (`EVERY_ZONE` = the same for all).

    `zone` = the zone of all that is found; null = that of each tenant.
    """

    start: datetime
    end: datetime
    zone: str | None
    buckets: Mapping[str, Sequence[Bucket]]


@dataclass(frozen=True, slots=True)
class GroupPage:
    """Which groups: at most `limit` after the key `after`, by these dimensions."""

    group_by: Sequence[str]
    after: Sequence[str] | None
    limit: int


@dataclass(frozen=True, slots=True)
class Given:
    """A line that is not read from segments: one of what runs, or an adjustment, whose amount is `corrected`."""

    tenant_id: TenantId
    project_id: ProjectId | None
    job_id: JobId
    pool_id: PoolId
    node_id: NodeId
    allocation_id: AllocationId
    kind: str
    sku: str
    amount: int
    start_at: datetime
    end_at: datetime
    seconds: int
    list_unit_price: Decimal = Decimal(0)
    unit_price: Decimal = Decimal(0)
    corrected: Decimal = Decimal(0)

    @classmethod
    def segment(cls, rated: RatedSegment) -> Self:
        """A priced segment."""
        segment, parties = rated.segment, rated.segment.parties
        return cls(
            parties.tenant_id,
            parties.project_id,
            parties.job_id,
            parties.pool_id,
            parties.node_id,
            segment.allocation_id,
            segment.kind.value,
            str(segment.sku),
            segment.amount,
            moment_of(segment.start),
            moment_of(segment.end),
            segment.seconds,
            rated.list_price.unit_price,
            rated.price.unit_price,
        )

    @classmethod
    def adjustment(cls, adjustment: Adjustment, allocation: AllocationView, posted: datetime) -> Self:
        """An adjustment, at the start of the period whose statement carries it."""
        return cls(
            allocation.tenant_id,
            allocation.project_id,
            allocation.job_id,
            allocation.pool_id,
            allocation.node_id,
            allocation.allocation_id,
            "adjustment",
            str(adjustment.key.sku),
            1,
            posted,
            posted,
            adjustment.seconds,
            corrected=adjustment.amount,
        )


@dataclass(frozen=True, slots=True)
class Beside:
    """Lines that are not read from segments, and allocation -> since when they stand for all that is written of it.

    What runs may be released, and written, between its being read and the summing; it must not count twice.
    """

    lines: Sequence[Given]
    instead: Mapping[AllocationId, datetime]


@dataclass(frozen=True, slots=True)
class GroupRow:
    """The sums of one group; `key` has a text per dimension: `+` and the value, or nothing where there is none."""

    key: tuple[str, ...]
    job_name: str | None
    seconds: int
    by_kind: Mapping[ChargeKind, Decimal]
    amount: Decimal


# None sorts first, and is no value.
_KEYS = {
    "tenant": "'+' || tenant_id",
    "project": "coalesce('+' || project_id, '')",
    "job": "'+' || job_id",
    "pool": "'+' || pool_id",
    "node": "'+' || node_id",
    "resource": "'+' || split_part(sku, '/', 1)",
    "flavor": "'+' || split_part(sku, '/', 2)",
    **dict.fromkeys(("hour", "day", "month"), "'+' || lpad(begins::text, 20, '0')"),
}
_TYPES = {
    **dict.fromkeys(("tenant_id", "project_id", "job_id", "pool_id", "node_id", "allocation_id"), "uuid"),
    **dict.fromkeys(("kind", "sku"), "text"),
    **dict.fromkeys(("amount", "seconds"), "bigint"),
    **dict.fromkeys(("start_at", "end_at"), "timestamptz"),
    **dict.fromkeys(("list_unit_price", "unit_price", "corrected"), "numeric"),
}
_NAMES = tuple(one.name for one in fields(Given))
_WRITTEN = ", ".join("0::numeric AS corrected" if name == "corrected" else name for name in _NAMES)
_GIVEN = ", ".join(f"${place}::{_TYPES[name]}[]" for place, name in enumerate(_NAMES, 10))
_US = "(extract(epoch FROM %s) * 1000000)::bigint"
# Whole seconds that begin between activation and an instant.
_WHOLE = "greatest(0, (%s - active_us + 999999) / 1000000)"

_QUERY = f"""
WITH clock AS (
    SELECT zone, array_agg(begins ORDER BY start_us) AS begins, array_agg(start_us ORDER BY start_us) AS starts,
        array_agg(end_us ORDER BY start_us) AS ends
    FROM unnest($3::text[], $4::bigint[], $5::bigint[], $6::bigint[]) AS b(zone, begins, start_us, end_us) GROUP BY zone
), span AS (
    SELECT {_WRITTEN} FROM segment WHERE start_at < $2 AND end_at >= $1 {{scope}} AND NOT EXISTS (
        SELECT 1 FROM unnest($8::uuid[], $9::timestamptz[]) AS r(id, since)
        WHERE id = allocation_id AND start_at >= since)
    UNION ALL SELECT * FROM unnest({_GIVEN}) AS g({", ".join(_NAMES)})
), known AS (
    SELECT s.*, {_US % "s.start_at"} AS start_us, {_US % "s.end_at"} AS end_us,
        {_US % "greatest(v.active_at, v.bound_at)"} AS active_us, v.body -> 'labels' AS labels,
        v.body ->> 'job_name' AS job_name, coalesce($7::text, t.body ->> 'timezone') AS zone
    FROM span s JOIN allocation_view v USING (allocation_id) LEFT JOIN tenant_view t ON t.tenant_id = s.tenant_id
    {{filters}}
), piece AS (
    SELECT k.*, c.begins[place] AS begins, greatest(k.start_us, c.starts[place]) AS from_us,
        least(k.end_us, c.ends[place]) AS to_us, k.kind IN ('minimum', 'adjustment') AS is_instant
    FROM known k JOIN clock c ON c.zone IN ('', k.zone)
    -- Buckets are looked up by bisection: a month has hundreds of hours and many thousands of segments.
    CROSS JOIN LATERAL generate_series(greatest(1, width_bucket(k.start_us, c.starts)),
        greatest(1, width_bucket(greatest(k.start_us, k.end_us - 1), c.starts))) AS place
    WHERE CASE WHEN k.kind IN ('minimum', 'adjustment')
        THEN k.start_us >= c.starts[place] AND k.start_us < c.ends[place]
        ELSE k.start_us < c.ends[place] AND k.end_us > c.starts[place] END
), counted AS (
    SELECT p.*, CASE WHEN is_instant OR to_us = end_us THEN seconds
            ELSE {_WHOLE % "to_us"} - {_WHOLE % "start_us"} END
        - CASE WHEN is_instant OR from_us = start_us THEN 0
            ELSE {_WHOLE % "from_us"} - {_WHOLE % "start_us"} END AS whole
    FROM piece p
), charged AS (
    SELECT c.*, list_unit_price * amount * whole AS listed, unit_price * amount * whole AS own,
        list_unit_price * amount * (to_us - from_us) * 0.000001 AS used
    FROM counted c
), grouped AS (
    SELECT {{key}} AS key, max(job_name) AS job_name,
        sum(CASE WHEN is_instant THEN 0 ELSE used END) AS usage,
        sum(CASE WHEN is_instant THEN 0 ELSE listed - used END) AS round_up,
        sum(CASE kind WHEN 'minimum' THEN listed ELSE 0 END) AS minimum,
        sum(own - listed) AS price_difference,
        sum(CASE kind WHEN 'waived' THEN -own ELSE 0 END) AS waiver,
        sum(corrected) AS adjustment,
        sum(CASE kind WHEN 'waived' THEN 0 ELSE whole END)::bigint AS seconds
    FROM charged GROUP BY 1
), total AS (
    SELECT *, usage + round_up + minimum + price_difference + waiver + adjustment AS owed FROM grouped
)
SELECT *, (SELECT sum(owed) FROM total) AS total FROM total {{after}} ORDER BY key COLLATE "C" LIMIT {{limit}}
"""


class _Parameters(list[object]):
    """The arguments of a statement; `add` gives the placeholder of one more."""

    def add(self, value: object, kind: str) -> str:
        self.append(value)
        return f"${len(self)}::{kind}"


async def sum_charges(
    unit: UnitOfWork, wanted: ChargeFilter, when: SumRange, beside: Beside, page: GroupPage
) -> tuple[list[GroupRow], Decimal]:
    """A page of groups by key, and the sum over all groups (zero when the page is empty)."""
    buckets = [(zone, one) for zone, found in when.buckets.items() for one in found]
    arguments = _Parameters([
        when.start,
        when.end,
        [zone for zone, _ in buckets],
        [one.begins for _, one in buckets],
        [one.start for _, one in buckets],
        [one.end for _, one in buckets],
        when.zone,
        list(beside.instead),
        list(beside.instead.values()),
        *([getattr(one, name) for one in beside.lines] for name in _NAMES),
    ])  # fmt: skip
    scope = "" if wanted.tenant_id is None else f"AND tenant_id = {arguments.add(wanted.tenant_id, 'uuid')}"
    text = _QUERY.format(
        scope=scope,
        filters=_filters(wanted, arguments),
        key=_key(page.group_by, arguments),
        after="" if page.after is None else f'WHERE key COLLATE "C" > {arguments.add(list(page.after), "text[]")}',
        limit=arguments.add(page.limit, "bigint"),
    )
    rows = await unit.fetch(text, *arguments)
    groups = [
        GroupRow(
            tuple(row["key"]), row["job_name"], row["seconds"], {kind: row[kind] for kind in CAUSES}, row["owed"]
        )
        for row in rows
    ]  # fmt: skip
    return groups, rows[0]["total"] if rows else Decimal(0)


def _filters(wanted: ChargeFilter, arguments: _Parameters) -> str:
    conditions = [
        f"s.{column} = {arguments.add(value, 'uuid')}"
        for column, value in (
            ("tenant_id", wanted.tenant_id),
            ("project_id", wanted.project_id),
            ("job_id", wanted.job_id),
            ("pool_id", wanted.pool_id),
            ("node_id", wanted.node_id),
        )
        if value is not None
    ]
    if wanted.flavor is not None:
        conditions.append(f"split_part(s.sku, '/', 2) = {arguments.add(wanted.flavor, 'text')}")
    for key, value in wanted.labels:
        name = arguments.add(key, "text")
        conditions.append(
            f"v.body -> 'labels' ? {name}"
            if value is None
            else f"v.body -> 'labels' ->> {name} = {arguments.add(value, 'text')}"
        )
    return f"WHERE {' AND '.join(conditions)}" if conditions else ""


def _key(group_by: Sequence[str], arguments: _Parameters) -> str:
    parts = []
    for dimension in group_by:
        _, _, label = dimension.partition("label:")
        parts.append(f"coalesce('+' || (labels ->> {arguments.add(label, 'text')}), '')" if label else _KEYS[dimension])
    return f"ARRAY[{', '.join(parts)}]::text[]"
