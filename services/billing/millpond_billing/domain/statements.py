"""Statements: the charges of a tenant and a period, exact, with one rounding line and a digest that proves them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256

from millpond_billing.domain.periods import Period
from millpond_billing.domain.rating import Charge, RatedSegment, charges_of
from millpond_contracts.bodies.bills import ChargeKind
from millpond_contracts.ids import AllocationId, TenantId
from millpond_contracts.prices import EXACT, Sku, exact_sum, round_half_up
from millpond_contracts.quantities import plain_decimal

# ISO 4217 currencies whose minor unit is not a hundredth.
_MINOR_UNITS: Mapping[str, int] = {
    **dict.fromkeys(("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND", "VUV"), 0),
    **dict.fromkeys(("XAF", "XOF", "XPF"), 0),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
}
# The order of a statement's lines.
_KINDS = tuple(ChargeKind)
_PLACES = {kind: place for place, kind in enumerate(_KINDS)}


@dataclass(frozen=True, slots=True, order=True)
class ChargeKey:
    """What a booked sum is about: one cause of one SKU of one allocation."""

    allocation_id: AllocationId
    sku: Sku
    kind: ChargeKind


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A later correction of a period already closed; it is posted in another, the closed one never changes."""

    key: ChargeKey
    original_period: Period
    seconds: int
    amount: Decimal
    reason: str


@dataclass(frozen=True, slots=True)
class StatementLine:
    """The exact sum of one cause and SKU; adjustments and rounding have no SKU."""

    kind: ChargeKind
    sku: Sku | None
    seconds: int
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Statement:
    """What a tenant owes for a period: `total` in whole minor units is the exact sum of all `lines`.

    Digests are empty until it is closed.
    """

    tenant_id: TenantId
    period: Period
    currency: str
    lines: tuple[StatementLine, ...]
    total: Decimal
    charges_digest: str = ""
    previous_digest: str | None = None
    digest: str = ""

    def subtotal(self, kind: ChargeKind) -> Decimal:
        """The exact sum of one cause."""
        return exact_sum(line.amount for line in self.lines if line.kind is kind)

    @property
    def seconds(self) -> int:
        """Billed seconds over all SKUs: usage and minimum less waived."""
        return sum(line.seconds for line in self.lines)


def minor_unit_decimals(currency: str) -> int:
    """Decimals of the currency's smallest coin, after ISO 4217: 2 for CNY, 0 for JPY."""
    return _MINOR_UNITS.get(currency, 2)


def charges_in(rated: Iterable[RatedSegment], period: Period) -> tuple[Charge, ...]:
    """The charges that belong to a period: those whose segment starts in it. Segments are cut at period starts."""
    return tuple(charge for one in rated if one.segment.start in period for charge in charges_of(one))


def with_rounding(lines: Iterable[StatementLine], currency: str) -> tuple[tuple[StatementLine, ...], Decimal]:
    """The lines with the one that rounds their exact sum to the total in whole minor units, and that total."""
    exact = tuple(lines)
    exact_total = exact_sum(line.amount for line in exact)
    total = round_half_up(exact_total, minor_unit_decimals(currency))
    rounding = EXACT.subtract(total, exact_total)
    return (*exact, StatementLine(ChargeKind.ROUNDING, None, 0, rounding)) if rounding else exact, total


class Tally:
    """Charges of a tenant and a period added up one after the other: a period may have more than memory holds.

    The same charges in the same order give the same statement, to the byte.
    """

    def __init__(self, tenant_id: TenantId, period: Period, currency: str) -> None:
        self.count = 0
        self._tenant_id, self._period, self._currency = tenant_id, period, currency
        self._sums: dict[tuple[int, Sku], tuple[int, Decimal]] = {}
        self._digest = sha256(b"[[")

    def add(self, charge: Charge) -> None:
        """Adds a charge.

        Raises:
            ValueError: it is of another tenant, period or currency.
        """
        _check_belongs(charge, self._tenant_id, self._period, self._currency)
        key = (_PLACES[charge.kind], charge.rated.segment.sku)
        seconds, amount = self._sums.get(key, (0, Decimal(0)))
        self._sums[key] = (seconds + charge.seconds, EXACT.add(amount, charge.amount))
        self._digest.update((b"," if self.count else b"") + _canonical(_charge_document(charge)))
        self.count += 1

    def statement(self, adjustments: Sequence[Adjustment] = (), previous_digest: str | None = None) -> Statement:
        """The statement of what was added.

        Args:
            adjustments: corrections of earlier periods that this statement carries.
            previous_digest: digest of the tenant's statement before, which this one's digest covers.
        """
        sums = sorted(self._sums.items())
        lines = [StatementLine(_KINDS[place], sku, seconds, amount) for (place, sku), (seconds, amount) in sums]
        if adjustments:
            corrected = exact_sum(adjustment.amount for adjustment in adjustments)
            seconds = sum(adjustment.seconds for adjustment in adjustments)
            lines.append(StatementLine(ChargeKind.ADJUSTMENT, None, seconds, corrected))
        rounded, total = with_rounding(lines, self._currency)
        charges_digest = self._digest.copy()
        charges_digest.update(b"]," + _canonical(sorted(_adjustment_document(one) for one in adjustments)) + b"]")
        document: dict[str, object] = {
            "tenant": str(self._tenant_id),
            "period": [self._period.number, self._period.start, self._period.end],
            "currency": self._currency,
            "lines": [_line_document(line) for line in rounded],
            "total": plain_decimal(total),
            "charges": charges_digest.hexdigest(),
            "previous": previous_digest,
        }
        return Statement(
            self._tenant_id,
            self._period,
            self._currency,
            rounded,
            total,
            charges_digest.hexdigest(),
            previous_digest,
            digest_of(document),
        )


def digest_of(document: object) -> str:
    """SHA-256 (hexadecimal) of the document as canonical JSON: sorted keys, no blanks, UTF-8."""
    return sha256(_canonical(document)).hexdigest()


def _canonical(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def booked_sums(charges: Iterable[Charge]) -> dict[ChargeKey, tuple[int, Decimal]]:
    """What charges book: key -> (seconds, exact amount)."""
    sums: dict[ChargeKey, tuple[int, Decimal]] = {}
    for charge in charges:
        key = ChargeKey(charge.rated.segment.allocation_id, charge.rated.segment.sku, charge.kind)
        seconds, amount = sums.get(key, (0, Decimal(0)))
        sums[key] = (seconds + charge.seconds, EXACT.add(amount, charge.amount))
    return sums


def rerating_adjustments(
    original_period: Period,
    booked: Mapping[ChargeKey, tuple[int, Decimal]],
    rated: Iterable[Charge],
    earlier: Iterable[Adjustment] = (),
    reason: str = "re-rated",
) -> tuple[Adjustment, ...]:
    """The difference between what is rated now and what is booked, so that posting it twice posts nothing new.

    Args:
        booked: the sums of the closed statement of `original_period`.
        rated: the charges of the same period as they are rated today.
        earlier: adjustments of that period already posted.
    """
    cumulative = dict(booked)
    for one in earlier:
        if one.original_period == original_period:
            seconds, amount = cumulative.get(one.key, (0, Decimal(0)))
            cumulative[one.key] = (seconds + one.seconds, EXACT.add(amount, one.amount))
    now = booked_sums(rated)
    differences = []
    for key in sorted(cumulative.keys() | now.keys()):
        seconds_before, amount_before = cumulative.get(key, (0, Decimal(0)))
        seconds_now, amount_now = now.get(key, (0, Decimal(0)))
        seconds, amount = seconds_now - seconds_before, EXACT.subtract(amount_now, amount_before)
        if seconds or amount:
            differences.append(Adjustment(key, original_period, seconds, amount, reason))
    return tuple(differences)


def _check_belongs(charge: Charge, tenant_id: TenantId, period: Period, currency: str) -> None:
    segment = charge.rated.segment
    if segment.parties.tenant_id != tenant_id:
        raise ValueError(f"expected charges of {tenant_id}, found one of {segment.parties.tenant_id}")
    if segment.start not in period or segment.end > period.end:
        raise ValueError(f"the charge of {segment.allocation_id} over {segment.start}..{segment.end} leaves the period")
    if {charge.rated.price.currency, charge.rated.list_price.currency} != {currency}:
        raise ValueError(f"expected prices in {currency}, found {charge.rated.price.currency}")


def _charge_document(charge: Charge) -> list[object]:
    segment = charge.rated.segment
    return [
        str(charge.kind),
        str(segment.allocation_id),
        str(segment.sku),
        segment.amount,
        segment.start,
        segment.end,
        charge.seconds,
        plain_decimal(charge.price.unit_price),
        str(charge.price.version_id),
        plain_decimal(charge.amount),
    ]


def _adjustment_document(adjustment: Adjustment) -> list[object]:
    key = adjustment.key
    return [
        str(key.kind),
        str(key.allocation_id),
        str(key.sku),
        adjustment.original_period.start,
        adjustment.seconds,
        plain_decimal(adjustment.amount),
        adjustment.reason,
    ]


def _line_document(line: StatementLine) -> list[object]:
    return [str(line.kind), None if line.sku is None else str(line.sku), line.seconds, plain_decimal(line.amount)]
