"""What a resource is priced by (the SKU), which price holds, and the one multiplication that turns it into money.

A price is charged per *smallest unit and second*: a thousandth of a device, a thousandth of a core, a MiB. Amounts are
integers, so every product is an exact decimal; nothing is rounded before the total of a statement.
Source: docs/decisions/0101-exact-unit-prices.md, and for which price holds 0023 and 0105.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import (
    ROUND_HALF_UP,
    Context,
    Decimal,
    DivisionByZero,
    FloatOperation,
    Inexact,
    InvalidOperation,
    Overflow,
)
from enum import StrEnum
from itertools import pairwise
from typing import Self, TypeVar

from millpond_contracts.ids import PriceVersionId, TenantId

SECONDS_PER_HOUR = 3600
MICROSECONDS_PER_SECOND = 1_000_000
UNIT_PRICE_SCALE = 18
PER_HOUR_SCALE = 9
AMOUNT_SCALE = UNIT_PRICE_SCALE + 6  # a unit price times whole microseconds
MAX_PER_HOUR = Decimal(1_000_000_000)
WILDCARD = "*"

# Exact arithmetic: 80 digits hold every product and sum; anything that would lose a digit raises instead.
EXACT = Context(
    prec=80, rounding=ROUND_HALF_UP, traps=[Inexact, InvalidOperation, DivisionByZero, Overflow, FloatOperation]
)
_ROUNDING = Context(prec=80, rounding=ROUND_HALF_UP, traps=[InvalidOperation, DivisionByZero, Overflow, FloatOperation])


class Resource(StrEnum):
    """What is priced."""

    DEVICE = "device"
    CPU = "cpu"
    MEMORY = "memory"


class Term(StrEnum):
    """On what terms it is used."""

    ON_DEMAND = "on_demand"
    RESERVED = "reserved"
    OFF_PEAK = "off_peak"


# Smallest units in the unit that people price: a device, a core, a GiB.
SMALLEST_PER_UNIT = {Resource.DEVICE: 1000, Resource.CPU: 1000, Resource.MEMORY: 1024}
# What a price per hour is the price of.
UNITS = {Resource.DEVICE: "device", Resource.CPU: "core", Resource.MEMORY: "GiB"}


@dataclass(frozen=True, slots=True, order=True)
class Sku:
    """Resource, flavor and term: `device/h100-sxm/on_demand`. CPU and memory have no flavors, written `*`."""

    resource: Resource
    flavor: str = WILDCARD
    term: Term = Term.ON_DEMAND

    @classmethod
    def parse(cls, text: str) -> Self:
        """The SKU written as `text`.

        Raises:
            ValueError: not three parts, or an unknown resource or term.
        """
        parts = text.split("/")
        if len(parts) != 3 or not parts[1]:
            raise ValueError(f"expected resource/flavor/term, found {text[:80]!r}")
        return cls(Resource(parts[0]), parts[1], Term(parts[2]))

    def __str__(self) -> str:
        return f"{self.resource}/{self.flavor}/{self.term}"

    def any_flavor(self) -> "Sku":
        """The SKU whose price holds where none names this flavor."""
        return Sku(self.resource, WILDCARD, self.term)


def exact_amount(unit_price: Decimal, amount: int, microseconds: int) -> Decimal:
    """The exact price of `amount` smallest units over `microseconds`.

    Args:
        unit_price: per smallest unit and second.
        amount: thousandths of a device or core, or MiB.
        microseconds: length of time; whole seconds are multiples of 1,000,000.

    Raises:
        decimal.Inexact: the product needs more than 80 digits.
    """
    return EXACT.multiply(unit_price, EXACT.scaleb(Decimal(amount * microseconds), -6))


def exact_sum(amounts: Iterable[Decimal]) -> Decimal:
    """The exact sum; the default context of `decimal` would silently keep 28 digits."""
    total = Decimal(0)
    for amount in amounts:
        total = EXACT.add(total, amount)
    return total


def unit_price_of(resource: Resource, per_hour: Decimal) -> Decimal:
    """The price per smallest unit and second that charges `per_hour` for one device, core or GiB an hour.

    Where the hour does not divide it is rounded once, here at publication, to 18 decimals: the published unit price is
    the price, and 10.00 an hour over 100,000 device-hours differs from 1,000,000.00 by less than 0.000001.

    Raises:
        ValueError: negative, above 1,000,000,000, or with more than nine decimals.
    """
    exponent = per_hour.as_tuple().exponent
    if not isinstance(exponent, int) or not 0 <= per_hour <= MAX_PER_HOUR:
        raise ValueError(f"expected a price per hour from 0 to {MAX_PER_HOUR}, found {per_hour}")
    if exponent < -PER_HOUR_SCALE:
        raise ValueError(f"expected at most {PER_HOUR_SCALE} decimals in a price per hour, found {per_hour}")
    quotient = _ROUNDING.divide(per_hour, Decimal(SMALLEST_PER_UNIT[resource] * SECONDS_PER_HOUR))
    return _ROUNDING.quantize(quotient, Decimal(1).scaleb(-UNIT_PRICE_SCALE))


def ratio_of(part: Decimal, whole: Decimal) -> Decimal:
    """`part` / `whole`, rounded to six decimals, halves away from zero; for showing, never for adding up.

    Raises:
        decimal.DivisionByZero: `whole` is zero.
    """
    return round_half_up(_ROUNDING.divide(part, whole), 6)


def round_half_up(amount: Decimal, decimals: int) -> Decimal:
    """`amount` rounded to `decimals` places, halves away from zero, as PostgreSQL's `round` does."""
    return _ROUNDING.quantize(amount, Decimal(1).scaleb(-decimals))


Line = TypeVar("Line")


def decide_line(find: Callable[[Sku, TenantId | None], Line | None], sku: Sku, tenant: TenantId | None) -> Line | None:
    """The price line that holds for a SKU; None where nothing prices it.

    The flavor decides before the scope: the tenant's price of the flavor, the list's, then both for any flavor. So a
    tenant's price for "any" never undercuts a flavor that the list names.

    Args:
        find: the line of exactly this SKU in the version of this scope (None = the public list) that is in force.
    """
    for wanted in dict.fromkeys((sku, sku.any_flavor())):
        for scope in dict.fromkeys((tenant, None)):
            line = find(wanted, scope)
            if line is not None:
                return line
    return None


@dataclass(frozen=True, slots=True)
class PublishedPrices:
    """One version of the prices of a scope (`tenant` None = the public list) over `[valid_from, valid_to)`.

    Instants are microseconds since 1970, `valid_to` None = open; `per_hour` is for one device, core or GiB.
    """

    version: PriceVersionId
    tenant: TenantId | None
    currency: str
    valid_from: int
    valid_to: int | None
    minimum_seconds: int
    per_hour: Mapping[Sku, Decimal]

    def holds_at(self, instant: int) -> bool:
        """Whether it is in force."""
        return self.valid_from <= instant and (self.valid_to is None or instant < self.valid_to)


@dataclass(frozen=True, slots=True)
class QuoteLine:
    """What an amount of one SKU costs. `amount` in smallest units; `unit_per_hour` for one device, core or GiB.

    `per_hour` is for the whole amount at the price in force at the start, `total` for the whole time.
    """

    sku: Sku
    amount: int
    version: PriceVersionId
    unit_per_hour: Decimal
    per_hour: Decimal
    total: Decimal | None


@dataclass(frozen=True, slots=True)
class Quote:
    """What amounts held together cost from a start on: exact, not rounded. Nothing is charged by a quote.

    `holds_until` = when the next published price begins to hold, None when none is known.
    """

    currency: str
    lines: tuple[QuoteLine, ...]
    minimum_seconds: int
    holds_until: int | None

    @property
    def per_hour(self) -> Decimal:
        """For everything together, at the prices in force at the start."""
        return exact_sum(line.per_hour for line in self.lines)

    @property
    def total(self) -> Decimal | None:
        """For everything together over the whole time; None without an end."""
        totals = [line.total for line in self.lines if line.total is not None]
        return exact_sum(totals) if len(totals) == len(self.lines) else None


def quote(
    published: Sequence[PublishedPrices],
    tenant: TenantId | None,
    amounts: Mapping[Sku, int],
    start: int,
    seconds: int | None = None,
) -> Quote | None:
    """What a tenant would be charged for amounts that are active from `start` on, as billing would charge it.

    Each second costs what is in force at its first instant, versions that begin later included; what ends before the
    minimum costs the minimum at the prices of the start.

    Args:
        published: every version that may hold from `start` on.
        amounts: SKU -> smallest units (thousandths of a device or core, MiB).
        start: microseconds since 1970.
        seconds: whole seconds that all of it stays active; None = without end, so without a total.

    Returns:
        None when some of it has no price.
    """
    scopes = (tenant, None)
    mine = [prices for prices in published if prices.tenant in scopes]
    ends = {prices.valid_to for prices in mine if prices.valid_to is not None}
    later = sorted(point for point in ends | {prices.valid_from for prices in mine} if point > start)
    lines: list[QuoteLine] = []
    minimum, currency = 0, ""
    for sku, amount in sorted(amounts.items()):
        found = _find_in_force(mine, tenant, sku, start)
        total = None if seconds is None else _total(mine, tenant, sku, amount, start, seconds, later)
        if found is None or (total is None and seconds is not None):
            return None
        prices, per_hour = found
        hourly = exact_amount(unit_price_of(sku.resource, per_hour), amount, SECONDS_PER_HOUR * MICROSECONDS_PER_SECOND)
        lines.append(QuoteLine(sku, amount, prices.version, per_hour, hourly, total))
        minimum, currency = max(minimum, prices.minimum_seconds), prices.currency
    return Quote(currency, tuple(lines), minimum, later[0] if later else None)


def _find_in_force(
    published: Sequence[PublishedPrices], tenant: TenantId | None, sku: Sku, instant: int
) -> tuple[PublishedPrices, Decimal] | None:
    in_force = {prices.tenant: prices for prices in published if prices.holds_at(instant)}

    def find(wanted: Sku, scope: TenantId | None) -> tuple[PublishedPrices, Decimal] | None:
        prices = in_force.get(scope)
        per_hour = None if prices is None else prices.per_hour.get(wanted)
        return None if prices is None or per_hour is None else (prices, per_hour)

    return decide_line(find, sku, tenant)


def _total(
    published: Sequence[PublishedPrices],
    tenant: TenantId | None,
    sku: Sku,
    amount: int,
    start: int,
    seconds: int,
    later: Sequence[int],
) -> Decimal | None:
    """The exact price of an amount over whole seconds; None when it has none at some time."""
    # The second in which a price begins still costs what held at its first instant.
    whole = [-((start - point) // MICROSECONDS_PER_SECOND) for point in later]
    edges = [0, *(second for second in whole if second < seconds), seconds]
    pieces = [(begin, end - begin) for begin, end in pairwise(edges) if end > begin]
    charged = []
    for begin, length in pieces:
        found = _find_in_force(published, tenant, sku, start + begin * MICROSECONDS_PER_SECOND)
        if found is None:
            return None
        charged.append(exact_amount(unit_price_of(sku.resource, found[1]), amount, length * MICROSECONDS_PER_SECOND))
    first = _find_in_force(published, tenant, sku, start)
    if first is not None and seconds < first[0].minimum_seconds:
        missing = (first[0].minimum_seconds - seconds) * MICROSECONDS_PER_SECOND
        charged.append(exact_amount(unit_price_of(sku.resource, first[1]), amount, missing))
    return exact_sum(charged)
