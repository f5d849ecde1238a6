"""Prices, charges, statements and exports as billing tells them."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StrictInt, StringConstraints

from millpond_contracts.bodies.shapes import Incoming, Outgoing, Page
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
    """One priced segment of one resource of an allocation; `amount` is exact, not rounded.

    `quantity` counts `unit`s (a whole device, a core, a GiB), and `per_hour` is the price of one of them.
    """

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
    unit: str | None = None
    seconds: int | None
    per_hour: ExactDecimal | None
    start_at: Instant | None
    end_at: Instant | None
    amount: Money
    price_version_id: PriceVersionId | None


GroupKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^(tenant|project|job|pool|node|resource|flavor|hour|day|month"
        r"|label:[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?)$"
    ),
]
"""What charges are summed by: a noun, a clock's unit in the tenant's zone, or `label:KEY`."""


class ChargeGroup(Outgoing):
    """The exact sum of charges that have something in common; what was not grouped by is null, or no label.

    An hour, day or month begins at `start_at`, in the tenant's zone. A segment that lasts over several of them is
    divided to the microsecond; a second belongs where it begins. An adjustment stands where the period begins whose
    statement carries it.
    """

    tenant_id: TenantId | None = None
    project_id: ProjectId | None = None
    job_id: JobId | None = None
    job_name: str | None = None
    pool_id: PoolId | None = None
    node_id: NodeId | None = None
    resource: str | None = None
    flavor: str | None = None
    labels: dict[str, str | None] = Field(default_factory=dict)
    start_at: Instant | None = None
    seconds: int
    subtotals: dict[ChargeKind, Money]
    amount: Money


class ChargeSums(Page[ChargeGroup]):
    """Charges of `[start_at, end_at)` in groups; `total` = the sum of all of them, on every page.

    Of a tenant's period, `total` and the statement's rounding are the statement to the last digit. What still runs
    counts up to `as_of`, which all pages have in common.
    """

    start_at: Instant
    end_at: Instant
    as_of: Instant
    group_by: list[str]
    total: Money


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
    """`csv`: a line of column names, then a line per charge. `jsonl`: a JSON object per line, as in `/v1/charges`."""

    CSV = "csv"
    JSONL = "jsonl"


class ExportSpec(Incoming):
    """An export of the charges of one period, built in the background."""

    tenant_id: TenantId | None = None
    period_start: Instant | None = Field(None, description="start of the period; null = the present one")
    format: ExportFormat = ExportFormat.CSV


class ExportState(StrEnum):
    """queued → running → ready → expired; one that cannot be built: failed. `running` outlives its worker."""

    QUEUED = "queued"
    RUNNING = "running"
    READY = "ready"
    FAILED = "failed"
    EXPIRED = "expired"


class ExportView(Outgoing):
    """An export; `rows` and `bytes` rise while it is built.

    It holds what billing knew at `as_of`, the moment at which its building began. `digest` = SHA-256 of the file,
    hexadecimal, once it is ready. At `expires_at` the file is deleted.
    """

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
    as_of: Instant | None = None
    expires_at: Instant | None = None
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


class CostKey(StrEnum):
    """What a cost report is by."""

    JOB = "job"
    PROJECT = "project"
    TENANT = "tenant"
    POOL = "pool"


class FleetShare(Outgoing):
    """What a pool's nodes of one market cost at the public list price, and where it went; exact.

    `provided` = used + held_unbilled + idle + unavailable. Of committed nodes, idle + unavailable is the commitment
    that was paid for and not used. `utilisation` = used / provided, to six decimals; null where nothing was provided.
    """

    pool_id: PoolId
    market: str
    provided: ExactDecimal
    used: ExactDecimal
    held_unbilled: ExactDecimal
    idle: ExactDecimal
    unavailable: ExactDecimal
    utilisation: ExactDecimal | None


class FlavorUse(Outgoing):
    """The same of a resource or a device's flavor as amounts: hours of a device, a core or a GiB (`unit`), rounded."""

    resource: str
    flavor: str
    unit: str
    provided_hours: ExactDecimal
    used_hours: ExactDecimal
    utilisation: ExactDecimal | None


class FleetCost(Outgoing):
    """All nodes at the public list price; exact, but for `utilisation`.

    `fixed` = a fixed fleet: every node that was there at any time, with the most it had, for the whole interval.
    `provided` = what was there; `saved` = fixed - provided. Where more was held than there was, an item is `left_out`.
    """

    nodes: int
    fixed: ExactDecimal
    provided: ExactDecimal
    saved: ExactDecimal
    used: ExactDecimal
    held_unbilled: ExactDecimal
    idle: ExactDecimal
    unavailable: ExactDecimal
    unused_commitment: ExactDecimal
    utilisation: ExactDecimal | None
    shares: list[FleetShare] = Field(description="per pool, committed nodes before those on demand")
    flavors: list[FlavorUse]
    left_out: list[str]


class CostGroup(Outgoing):
    """What one job, project, tenant or pool cost.

    `used` = active time at the public list price, exact; over all groups it is the fleet's `used`. `held_unbilled` =
    held while starting, or after the provider asked it to stop. `charged` = what bills say of the interval.
    """

    tenant_id: TenantId | None = None
    project_id: ProjectId | None = None
    job_id: JobId | None = None
    job_name: str | None = None
    pool_id: PoolId | None = None
    used: ExactDecimal
    held_unbilled: ExactDecimal
    charged: ExactDecimal


class CostReport(Page[CostGroup]):
    """Costs of `[start_at, end_at)` in one currency; idle capacity is nobody's and stands in `fleet` alone.

    `fleet` is null in a tenant's report. `used`, `held_unbilled` and `charged` are the sums of all groups.
    """

    start_at: Instant
    end_at: Instant
    currency: str
    group_by: CostKey
    fleet: FleetCost | None
    used: ExactDecimal
    held_unbilled: ExactDecimal
    charged: ExactDecimal


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
