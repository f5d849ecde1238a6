"""A second, naive bill: it walks every second of every allocation and asks what held at that second's first instant.

It imports nothing of Millpond, knows no segments and no telescoping, and computes in exact fractions, so that an error
in the product's billing is not repeated here. A history is a list of dicts in the order in which things truly happened:

    {"type": "price", "version": "v1", "tenant": None, "at": US, "minimum_seconds": 60, "unit_prices": {SKU: "0.00025"}}
    {"type": "bound", "allocation": "a1", "tenant": "t1", "at": US, "amounts": {SKU: 1000}}
    {"type": "activated", "allocation": "a1", "at": US}
    {"type": "resized", "allocation": "a1", "at": US, "amounts": {SKU: 2000}}
    {"type": "provider_stop_requested", "allocation": "a1", "at": US}
    {"type": "released", "allocation": "a1", "at": US, "provider_fault": False}

US are whole microseconds since 1970. SKU is `resource/flavor/term`; `*` as flavor prices any flavor. `unit_prices` are
per smallest unit (thousandth of a device or core, MiB) and second. A price holds until the next of the same tenant
(None = the public list). A reported instant that lies before the one it must follow counts as that one.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import floor
from typing import Any

SECOND = 1_000_000
Event = Mapping[str, Any]
History = Sequence[Event]
LineKey = tuple[str, str | None]


@dataclass
class Life:
    """One allocation as the history tells it, with instants put in order."""

    name: str
    tenant: str
    bound: int
    amounts: list[tuple[int, dict[str, int]]]
    active: int | None = None
    stop: int | None = None
    released: int | None = None
    provider_fault: bool = False

    def end(self, until: int) -> int:
        return until if self.released is None else min(self.released, until)

    def amounts_at(self, instant: int) -> dict[str, int]:
        return [amounts for since, amounts in self.amounts if since <= instant][-1]

    def waived_at(self, instant: int) -> bool:
        return self.stop is not None and instant >= self.stop


@dataclass
class PriceAt:
    """One price in force."""

    version: str
    unit_price: Fraction
    minimum_seconds: int


@dataclass
class Bill:
    """Exact sums by (cause, SKU); causes are the product's. `total` is what is owed in whole minor units."""

    amounts: dict[LineKey, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    seconds: dict[LineKey, int] = field(default_factory=lambda: defaultdict(int))
    total: Fraction = Fraction(0)

    def cause(self, kind: str) -> Fraction:
        return sum((amount for (found, _), amount in self.amounts.items() if found == kind), Fraction(0))


def lives(history: History) -> dict[str, Life]:
    """Allocation -> its life. Events of an allocation whose bind is unknown are left out."""
    found: dict[str, Life] = {}
    for event in history:
        if event["type"] == "bound":
            found[event["allocation"]] = Life(
                event["allocation"], event["tenant"], event["at"], [(event["at"], dict(event["amounts"]))]
            )
        elif event["type"] != "price" and event["allocation"] in found:
            _live_on(found[event["allocation"]], event)
    for life in found.values():
        if life.released is not None:
            life.amounts = life.amounts[:1] + [step for step in life.amounts[1:] if step[0] < life.released]
        if life.stop is not None:
            life.stop = max(life.stop, life.bound, life.active or 0)
            life.stop = life.stop if life.released is None else min(life.stop, life.released)
    return found


def _live_on(life: Life, event: Event) -> None:
    kind, at = event["type"], event["at"]
    if kind == "activated":
        life.active = max(at, life.bound)
    elif kind == "resized":
        life.amounts.append((max(at, life.amounts[-1][0]), dict(event["amounts"])))
    elif kind == "provider_stop_requested":
        life.stop, life.provider_fault = at, True
    elif kind == "released":
        life.released = max(at, life.bound, life.active or 0)
        life.provider_fault = life.provider_fault or event["provider_fault"]
    else:
        raise AssertionError(f"unknown event {kind}")


def price_at(history: History, sku: str, tenant: str | None, instant: int) -> PriceAt:
    """The price of a SKU: of the flavor before any flavor, and then of the tenant before the list."""
    resource, _, term = sku.split("/")
    for wanted in (sku, f"{resource}/*/{term}"):
        for scope in (tenant, None):
            in_force = [
                event
                for event in history
                if event["type"] == "price" and event["tenant"] == scope and event["at"] <= instant
            ]
            latest = max(in_force, key=lambda event: int(event["at"]), default=None)
            if latest is not None and wanted in latest["unit_prices"]:
                unit_price = Fraction(latest["unit_prices"][wanted])
                return PriceAt(latest["version"], unit_price, latest["minimum_seconds"])
    raise AssertionError(f"no price of {sku} at {instant}")


def bill(history: History, tenant: str, start: int, end: int, decimals: int = 2, until: int | None = None) -> Bill:
    """What the tenant owes for `[start, end)`, knowing the history up to `until` (at most `end` counts)."""
    known = end if until is None else min(end, until)
    result = Bill()
    prices = [event for event in history if event["type"] == "price"]
    for life in lives(history).values():
        if life.tenant == tenant:
            _bill_exact_time(prices, life, start, known, result)
            _bill_seconds(prices, life, start, known, result)
            _bill_minimum(prices, life, start, end, known, result)
    result.amounts = {key: amount for key, amount in result.amounts.items() if amount or key[0] == "usage"}
    exact = sum(result.amounts.values(), Fraction(0))
    result.total = round_half_up(exact, decimals)
    if result.total != exact:
        result.amounts["rounding", None] = result.total - exact
    return result


def round_half_up(amount: Fraction, decimals: int) -> Fraction:
    """Halves away from zero."""
    scale = 10**decimals
    rounded = Fraction(floor(abs(amount) * scale + Fraction(1, 2)), scale)
    return rounded if amount >= 0 else -rounded


def held_microseconds(history: History, sku: str, start: int, end: int) -> dict[str, int]:
    """Amount x microseconds of a SKU over all allocations in `[start, end)` by state: starting, active, releasing."""
    sums = {"starting": 0, "active": 0, "releasing": 0}
    for life in lives(history).values():
        for first, last in _stretches(history, life, max(start, life.bound), life.end(end)):
            if life.stop is not None and first >= life.stop and life.active is not None and first >= life.active:
                state = "releasing"
            else:
                state = "active" if life.active is not None and first >= life.active else "starting"
            sums[state] += life.amounts_at(first).get(sku, 0) * (last - first)
    return sums


def _bill_exact_time(history: History, life: Life, start: int, end: int, result: Bill) -> None:
    """The list value of each microsecond, stretch by stretch within which nothing at all happens anywhere."""
    if life.active is None:
        return
    for first, last in _stretches(history, life, max(start, life.active), life.end(end)):
        for sku, amount in life.amounts_at(first).items():
            if amount:
                value = price_at(history, sku, None, first).unit_price * amount * (last - first) / SECOND
                result.amounts["usage", sku] += value
                result.amounts["round_up", sku] -= value


def _bill_seconds(history: History, life: Life, start: int, end: int, result: Bill) -> None:
    """Each second begun counts whole, at what held at its first instant."""
    for instant, count in _seconds(history, life, start, life.end(end)):
        for sku, amount in life.amounts_at(instant).items():
            if not amount:
                continue
            listed = price_at(history, sku, None, instant).unit_price * amount * count
            owed = price_at(history, sku, life.tenant, instant).unit_price * amount * count
            result.amounts["round_up", sku] += listed
            result.amounts["price_difference", sku] += owed - listed
            result.seconds["usage", sku] += count
            if life.waived_at(instant):
                result.amounts["waiver", sku] -= owed
                result.seconds["waiver", sku] -= count


def _bill_minimum(history: History, life: Life, start: int, end: int, known: int, result: Bill) -> None:
    if life.active is None or life.released is None or life.provider_fault:
        return
    if not (start <= life.released < end and life.released <= known):
        return
    seconds = sum(count for _, count in _seconds(history, life, life.active, life.released))
    # A second resize at the instant of the bind replaces what was bound.
    for sku, amount in life.amounts_at(life.bound).items():
        listed = price_at(history, sku, None, life.bound)
        owed = price_at(history, sku, life.tenant, life.bound)
        missing = max(0, owed.minimum_seconds - seconds)
        if amount and missing:
            result.amounts["minimum", sku] += listed.unit_price * amount * missing
            result.amounts["price_difference", sku] += (owed.unit_price - listed.unit_price) * amount * missing
            result.seconds["minimum", sku] += missing


def _seconds(history: History, life: Life, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The seconds of a life that begin in `[start, end)`: (first instant, how many alike follow one another).

    Seconds are counted from activation, so all begin at `active + k` seconds. Runs in which nothing happens are
    taken together, else a month would take minutes.
    """
    if life.active is None:
        return
    moments = [*_moments(history, life), start, end]
    second = 0
    while (instant := life.active + second * SECOND) < end:
        next_change = min((moment for moment in moments if moment > instant), default=end)
        following = second + 1
        while life.active + following * SECOND < next_change:
            # Whole seconds up to the change in one stride, then one by one.
            stride = (next_change - life.active) // SECOND - following
            following += max(1, stride)
        if instant >= start:
            yield instant, following - second
        second = following


def _stretches(history: History, life: Life, start: int, end: int) -> Iterator[tuple[int, int]]:
    moments = sorted({moment for moment in _moments(history, life) if start < moment < end} | {start, end})
    if start < end:
        yield from pairwise(moments)


def _moments(history: History, life: Life) -> list[int]:
    own = [since for since, _ in life.amounts] + [life.bound]
    own += [moment for moment in (life.active, life.stop, life.released) if moment is not None]
    return own + [event["at"] for event in history if event["type"] == "price"]
