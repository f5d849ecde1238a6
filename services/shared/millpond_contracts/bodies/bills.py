"""Prices, charges, statements and exports as billing tells them."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StrictInt, StringConstraints

from millpond_contracts.bodies.shapes import Incoming, Outgoing
from millpond_contracts.ids import (
    AllocationId,
    ExportId,
    JobId,
    NodeId,
    PoolId,
    PriceBookId,
    PriceVersionId,
    ProjectId,
    SegmentId,
    StatementId,
    TenantId,
)
from millpond_contracts.quantities import Currency, ExactDecimal, Instant, Money

Sku = Annotated[
    str, StringConstraints(pattern=r"^(device|cpu|memory)/[a-z0-9*][a-z0-9._-]{0,62}/(on_demand|reserved|off_peak)$")
]


class PriceLine(Incoming):
    """A unit price. Units: one whole device, one CPU core, one GiB of memory; per hour.

    `sku` = resource/flavor/term; CPU and memory have the flavor `*`; `device/*/on_demand` prices every unnamed flavor.
    """

    sku: Sku
    per_hour: ExactDecimal = Field(ge=0)


class PriceVersionSpec(Incoming):
    """New prices, in force from `valid_from` (null = now; never in the past) until the next version."""

    currency: Currency = "CNY"
    valid_from: Instant | None = None
    minimum_seconds: StrictInt = Field(60, ge=0, le=86_400)
    lines: Annotated[tuple[PriceLine, ...], Field(min_length=1, max_length=2000)]
    tenant_id: TenantId | None = Field(None, description="null = the public list")
    note: str = Field("", max_length=500)


class PriceVersionView(Outgoing):
    """One immutable version of a price book."""

    price_version_id: PriceVersionId
    price_book_id: PriceBookId
    tenant_id: TenantId | None
    currency: str
    valid_from: Instant
    valid_to: Instant | None
    minimum_seconds: int
    lines: tuple[PriceLine, ...]
    note: str
    example: bool = False
    created_at: Instant
    generation: int


class ChargeKind(StrEnum):
    """Lines of a bill by cause. Their sum is the statement."""

    USAGE = "usage"
    ROUND_UP = "round_up"
    MINIMUM = "minimum"
    PRICE_DIFFERENCE = "price_difference"
    RESERVATION = "reservation"
    WAIVER = "waiver"
    ADJUSTMENT = "adjustment"
    ROUNDING = "rounding"


class ChargeView(Outgoing):
    """One priced segment of one resource of an allocation; `amount` is exact, not rounded."""

    segment_id: SegmentId | None
    allocation_id: AllocationId | None
    job_id: JobId | None
    job_name: str | None
    project_id: ProjectId | None
    pool_id: PoolId | None
    node_id: NodeId | None
    kind: ChargeKind
    sku: str | None
    quantity: ExactDecimal | None
    seconds: int | None
    per_hour: ExactDecimal | None
    start_at: Instant | None
    end_at: Instant | None
    amount: Money
    price_version_id: PriceVersionId | None


class StatementState(StrEnum):
    DRAFT = "draft"
    CLOSED = "closed"


class StatementView(Outgoing):
    """What a tenant owes for a period. A draft is computed when read; a closed one never changes, with its hash."""

    statement_id: StatementId | None
    tenant_id: TenantId
    state: StatementState
    number: int | None
    period_start: Instant
    period_end: Instant
    as_of: Instant
    timezone: str
    currency: str
    subtotals: dict[ChargeKind, Money]
    total: Money
    lines: int
    seconds: int
    digest: str | None
    closed_at: Instant | None


class ExportFormat(StrEnum):
    CSV = "csv"


class ExportSpec(Incoming):
    """An export of the charges of one period, built in the background."""

    tenant_id: TenantId | None = None
    period_start: Instant | None = Field(None, description="start of the period; null = the present one")
    format: ExportFormat = ExportFormat.CSV


class ExportState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    READY = "ready"
    FAILED = "failed"


class ExportView(Outgoing):
    export_id: ExportId
    tenant_id: TenantId
    format: ExportFormat
    period_start: Instant
    period_end: Instant
    state: ExportState
    rows: int | None
    bytes: int | None
    digest: str | None
    error: str | None
    created_at: Instant
    generation: int


class ConservationValue(Outgoing):
    """The same at the public list price in force at each microsecond, exact; `difference` is zero to the last digit."""

    currency: str
    capacity: ExactDecimal
    active: ExactDecimal
    held_unbilled: ExactDecimal
    idle: ExactDecimal
    unavailable: ExactDecimal
    difference: ExactDecimal


class ConservationLine(Outgoing):
    """Where one resource of a node went, in smallest units times microseconds; `difference` is zero when it adds up.

    Where more is held than there is, `difference` says how much, and there is no `value`.
    """

    node_id: NodeId
    item: str
    sku: str
    capacity: int
    active: int
    held_unbilled: int
    idle: int
    unavailable: int
    difference: int
    value: ConservationValue | None = None


class BillCheck(Outgoing):
    """List value of the metered time plus the named lines, less the statement: zero to the last digit."""

    tenant_id: TenantId
    period_start: Instant
    metered_list_value: Money
    statement_total: Money
    difference: Money


class Reconciliation(Outgoing):
    """Conservation of every node over an interval and the bill check of one tenant, when asked for."""

    start_at: Instant
    end_at: Instant
    conservation: list[ConservationLine]
    bill: BillCheck | None = None
