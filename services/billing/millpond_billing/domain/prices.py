"""Versioned price books: immutable versions, one in force per scope at an instant, the public list behind them."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Self

from millpond_contracts.ids import PriceVersionId, TenantId
from millpond_contracts.prices import Resource, Sku, decide_line, exact_amount, unit_price_of

DEFAULT_MINIMUM_SECONDS = 60
DEFAULT_CURRENCY = "CNY"
# Yuan for one device, core or GiB an hour: an example for a first bill, not an offer. Each divides into exact seconds.
EXAMPLE_PER_HOUR: Mapping[Sku, Decimal] = {
    Sku(Resource.DEVICE): Decimal("9.00"),
    Sku(Resource.CPU): Decimal("0.18"),
    Sku(Resource.MEMORY): Decimal("0.018"),
}


class PriceRefused(ValueError):
    """A price version that may not be published; the message says why."""


class PriceOverlap(PriceRefused):
    """Another version already prices the scope in that time."""


class PriceMissing(LookupError):
    """No version in force prices the SKU. Nothing is ever rated at zero for want of a price."""

    def __init__(self, sku: Sku, instant: int) -> None:
        super().__init__(f"no price of {sku} at instant {instant}")
        self.sku = sku
        self.instant = instant


@dataclass(frozen=True, slots=True)
class PriceLine:
    """`per_hour` is what people wrote; `unit_price`, per smallest unit and second, is what is charged."""

    sku: Sku
    per_hour: Decimal
    unit_price: Decimal

    @classmethod
    def of(cls, sku: Sku, per_hour: Decimal) -> Self:
        """The line that charges `per_hour` for a device, core or GiB.

        Raises:
            ValueError: out of bounds (see `unit_price_of`).
        """
        return cls(sku, per_hour, unit_price_of(sku.resource, per_hour))


@dataclass(frozen=True, slots=True)
class PriceVersion:
    """Prices of one scope over `[valid_from, valid_to)`; `tenant_id` null = the public list, `valid_to` null = open."""

    version_id: PriceVersionId
    tenant_id: TenantId | None
    currency: str
    valid_from: int
    valid_to: int | None
    minimum_seconds: int
    lines: tuple[PriceLine, ...]
    example: bool = False

    def holds_at(self, instant: int) -> bool:
        """Whether it is in force at `instant`."""
        return self.valid_from <= instant and (self.valid_to is None or instant < self.valid_to)

    def find_line(self, sku: Sku) -> PriceLine | None:
        """The line of exactly this SKU."""
        return next((line for line in self.lines if line.sku == sku), None)


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one SKU that was in force, and the version that set it."""

    version_id: PriceVersionId
    currency: str
    unit_price: Decimal
    per_hour: Decimal
    minimum_seconds: int

    def amount(self, amount: int, microseconds: int) -> Decimal:
        """Exact money for `amount` smallest units over `microseconds`."""
        return exact_amount(self.unit_price, amount, microseconds)


@dataclass(frozen=True, slots=True)
class PriceBook:
    """All versions ever published, of the public list and of tenants."""

    versions: tuple[PriceVersion, ...]
    # Between two changes of any version every price stays what it is, so each is looked for once.
    _changes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _found: dict[tuple[Sku, TenantId | None, int], Price] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        ends = {version.valid_to for version in self.versions if version.valid_to is not None}
        changes = tuple(sorted(ends | {version.valid_from for version in self.versions}))
        object.__setattr__(self, "_changes", changes)

    def publish(self, version: PriceVersion, now: int) -> "PriceBook":
        """The book with one more version; an open version of the same scope ends where the new one begins.

        Raises:
            PriceOverlap: a version that follows, or that has an end, already prices the scope in that time.
            PriceRefused: in the past, empty, a SKU twice, or a currency other than the book's.
        """
        _check(version, now)
        if any(other.currency != version.currency for other in self.versions):
            raise PriceRefused(f"expected the book's currency {self.versions[0].currency}, found {version.currency}")
        kept: list[PriceVersion] = []
        for other in self.versions:
            if other.tenant_id != version.tenant_id or not _overlap(other, version):
                kept.append(other)
            elif other.valid_to is None and other.valid_from < version.valid_from:
                kept.append(replace(other, valid_to=version.valid_from))
            else:
                raise PriceOverlap(f"version {other.version_id} already prices this scope in that time")
        return PriceBook((*kept, version))

    def price_at(self, sku: Sku, tenant_id: TenantId | None, instant: int) -> Price:
        """The price in force; a null tenant asks for the public list price.

        Raises:
            PriceMissing: no version prices it.
        """
        key = (sku, tenant_id, bisect_right(self._changes, instant))
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._find_price(sku, tenant_id, instant)
        return found

    def _find_price(self, sku: Sku, tenant_id: TenantId | None, instant: int) -> Price:
        in_force = {version.tenant_id: version for version in self.versions if version.holds_at(instant)}

        def find(wanted: Sku, scope: TenantId | None) -> Price | None:
            version = in_force.get(scope)
            line = None if version is None else version.find_line(wanted)
            if version is None or line is None:
                return None
            return Price(version.version_id, version.currency, line.unit_price, line.per_hour, version.minimum_seconds)

        price = decide_line(find, sku, tenant_id)
        if price is None:
            raise PriceMissing(sku, instant)
        return price

    def change_points(self, tenant_id: TenantId | None) -> tuple[int, ...]:
        """Every instant at which the tenant's or the list's version changes, in order; a null tenant: the list's."""
        scopes = (tenant_id, None)
        ends = [version.valid_to for version in self.versions if version.tenant_id in scopes]
        starts = [version.valid_from for version in self.versions if version.tenant_id in scopes]
        return tuple(sorted({*starts, *(end for end in ends if end is not None)}))


def example_version(version_id: PriceVersionId, valid_from: int) -> PriceVersion:
    """The public list that a new installation starts with, marked as an example."""
    return PriceVersion(
        version_id=version_id,
        tenant_id=None,
        currency=DEFAULT_CURRENCY,
        valid_from=valid_from,
        valid_to=None,
        minimum_seconds=DEFAULT_MINIMUM_SECONDS,
        lines=tuple(PriceLine.of(sku, per_hour) for sku, per_hour in EXAMPLE_PER_HOUR.items()),
        example=True,
    )


def _check(version: PriceVersion, now: int) -> None:
    if version.valid_from < now:
        raise PriceRefused("a price never starts in the past")
    if version.valid_to is not None and version.valid_to <= version.valid_from:
        raise PriceRefused("a price must end after it starts")
    if version.minimum_seconds < 0:
        raise PriceRefused(f"expected minimum seconds of zero or more, found {version.minimum_seconds}")
    _check_lines(version.lines)


def _check_lines(lines: Sequence[PriceLine]) -> None:
    if not lines:
        raise PriceRefused("a price version needs at least one line")
    if len({line.sku for line in lines}) != len(lines):
        raise PriceRefused("a price version names each SKU once")


def _overlap(one: PriceVersion, other: PriceVersion) -> bool:
    one_ends_before = one.valid_to is not None and one.valid_to <= other.valid_from
    other_ends_before = other.valid_to is not None and other.valid_to <= one.valid_from
    return not (one_ends_before or other_ends_before)
