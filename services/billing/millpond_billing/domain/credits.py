"""Credit notes: parts of a closed statement given back, never more than it was, to the last coin.

Each note rounds the sum credited so far and takes off what earlier notes gave, so that any number of partial credits,
in any order, adds up to the statement and not a coin more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from millpond_billing.domain.statements import Statement, StatementLine, minor_unit_decimals
from millpond_contracts.bodies.bills import ChargeKind
from millpond_contracts.prices import EXACT, Sku, exact_sum, round_half_up

LineKey = tuple[ChargeKind, Sku | None]


class CreditRefused(ValueError):
    """More than remains to be credited, or a line that the statement has not."""


@dataclass(frozen=True, slots=True)
class CreditNote:
    """Exact amounts given back by line of the statement with this digest; `total` is in whole minor units."""

    statement_digest: str
    amounts: tuple[tuple[LineKey, Decimal], ...]
    total: Decimal


def creditable(statement: Statement, earlier: Sequence[CreditNote]) -> dict[LineKey, Decimal]:
    """What remains to be credited of each line, exact; the rounding line goes with the totals."""
    remaining = {_key(line): line.amount for line in statement.lines if line.kind is not ChargeKind.ROUNDING}
    for note in earlier:
        for key, amount in note.amounts:
            remaining[key] = EXACT.subtract(remaining[key], amount)
    return remaining


def credit(statement: Statement, earlier: Sequence[CreditNote], amounts: Mapping[LineKey, Decimal]) -> CreditNote:
    """A note that gives back `amounts` (line -> exact part of it, of the same sign).

    Raises:
        CreditRefused: an unknown line, the other sign, or beyond what remains of the line or of the whole.
    """
    remaining = creditable(statement, earlier)
    for key, amount in amounts.items():
        if key not in remaining:
            raise CreditRefused(f"the statement has no line {key}")
        if not _is_part(amount, remaining[key]):
            raise CreditRefused(f"expected at most {remaining[key]} of line {key}, found {amount}")
    left = exact_sum(remaining.values())
    if not _is_part(exact_sum(amounts.values()), left):
        raise CreditRefused(f"expected at most {left} in total, found {exact_sum(amounts.values())}")
    given = exact_sum(amount for note in earlier for _, amount in note.amounts)
    credited = round_half_up(EXACT.add(given, exact_sum(amounts.values())), minor_unit_decimals(statement.currency))
    total = EXACT.subtract(credited, exact_sum(note.total for note in earlier))
    ordered = sorted(amounts.items(), key=lambda item: (item[0][0], str(item[0][1])))
    return CreditNote(statement.digest, tuple(ordered), total)


def _is_part(amount: Decimal, whole: Decimal) -> bool:
    return min(Decimal(0), whole) <= amount <= max(Decimal(0), whole)


def _key(line: StatementLine) -> LineKey:
    return (line.kind, line.sku)
