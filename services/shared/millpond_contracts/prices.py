"""What a resource is priced by (the SKU), and the one multiplication that turns a price into money.

A price is charged per *smallest unit and second*: a thousandth of a device, a thousandth of a core, a MiB. Amounts are
integers, so every product is an exact decimal; nothing is rounded before the total of a statement.
Source: docs/decisions/0101-exact-unit-prices.md.
"""

from collections.abc import Iterable
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
from typing import Self

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
