"""The part of the checker about money: segments, charges, statements, conservation, and the reference model's bill."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import asyncpg

from tests.reference.billing_model import bill
from tests.system.client import Caller

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PROVIDER_ENDS = ("node_lost", "node_restarted", "drained", "preempted", "reclaimed", "moved")
_SMALLEST = {"device": 1000, "cpu": 1000, "memory": 1024}
_UNIT_PRICE_DIGITS = Decimal("1e-18")
_DIVIDING = Context(prec=80)

# Cause of an amount -> whether its seconds are told, and counted up or down.
_COUNTED_SECONDS = {"usage": 1, "minimum": 1, "waiver": -1}
_CAUSES = ("usage", "round_up", "minimum", "price_difference", "waiver")

Amounts = dict[tuple[str, str], tuple[Fraction, int]]
Bodies = Mapping[str, dict[str, Any]]


async def check_bill(connection: asyncpg.Connection, operator: Caller, allocations: Bodies) -> list[str]:
    """Findings: `allocations` holds the newest body of each, as the scheduler's outbox tells it."""
    findings = await _segments(connection)
    for table in ("adjustment", "anomaly"):
        rows = await connection.fetch(f"SELECT * FROM billing.{table}")
        findings += [f"billing found an {table}: {dict(row)}" for row in rows]
    history = await _history(connection, allocations)
    findings += await _amounts(connection, history)
    for tenant in sorted({body["tenant_id"] for body in allocations.values()}):
        findings += await _statement(connection, operator, tenant, history, allocations)
    return findings


async def _segments(connection: asyncpg.Connection) -> list[str]:
    """Segments of a resource follow one another from activation to release, with the amount held, and never overlap."""
    findings = []
    allocations = await connection.fetch(
        "SELECT id, cpu_milli, memory_mib, devices, term, active_at, released_at FROM scheduler.allocation"
        " WHERE active_at IS NOT NULL AND released_at IS NOT NULL"
    )
    rows = await connection.fetch("SELECT * FROM billing.segment WHERE kind <> 'minimum' ORDER BY start_at")
    found: dict[tuple[str, str], list[asyncpg.Record]] = defaultdict(list)
    for row in rows:
        found[str(row["allocation_id"]), row["sku"]].append(row)
    for one in allocations:
        for sku, amount in _held(dict(one)).items():
            segments = found.pop((str(one["id"]), sku), [])
            findings += _follow(f"{one['id']} {sku}", segments, one["active_at"], one["released_at"], amount)
    findings += [f"segments of something that was not active: {key}" for key in found]
    return findings


def _follow(name: str, segments: list[asyncpg.Record], since: datetime, until: datetime, amount: int) -> list[str]:
    if since == until:
        return [f"{name}: segments of no time"] if segments else []
    findings = []
    at, seconds = since, 0
    for segment in segments:
        if segment["start_at"] != at:
            findings.append(f"{name}: a segment begins at {segment['start_at']}, expected {at}")
        if segment["amount"] != amount:
            findings.append(f"{name}: a segment of {segment['amount']}, held were {amount}")
        at, seconds = segment["end_at"], seconds + segment["seconds"]
    whole = -((since - until) // timedelta(seconds=1))
    if at != until or seconds != whole:
        findings.append(f"{name}: {seconds} s up to {at}, expected {whole} s up to {until}")
    return findings


async def _amounts(connection: asyncpg.Connection, history: list[dict[str, Any]]) -> list[str]:
    """Seconds and amounts of each released allocation, by cause and SKU, are the model's to the last digit."""
    written = await _written_amounts(connection)
    prices = [event for event in history if event["type"] == "price"]
    lives: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in history:
        if event["type"] != "price":
            lives[event["allocation"]].append(event)
    findings = []
    for name, events in lives.items():
        if events[-1]["type"] != "released":
            continue
        model = bill([*prices, *events], events[0]["tenant"], 0, events[-1]["at"] + 1)
        keys = model.amounts.keys() | model.seconds.keys()
        expected = {
            (cause, sku): (model.amounts.get((cause, sku), Fraction(0)), model.seconds.get((cause, sku), 0))
            for cause, sku in keys
            if cause in _CAUSES and sku is not None
        }
        expected = {key: value for key, value in expected.items() if any(value)}
        found = written.get(_uuid_of(name), {})
        if found != expected:
            findings.append(f"{name}: written are {found}, the model says {expected}")
    return findings


async def _written_amounts(connection: asyncpg.Connection) -> dict[UUID, Amounts]:
    """Allocation -> its exact sums of amounts and of the seconds that are told of them, where either is not 0."""
    sums = ", ".join(f"coalesce(sum({cause}), 0) AS {cause}" for cause in _CAUSES)
    counts = ", ".join(
        f"coalesce(sum({sign} * seconds) FILTER (WHERE {cause} IS NOT NULL), 0)::bigint AS {cause}_seconds"
        for cause, sign in _COUNTED_SECONDS.items()
    )
    found: dict[UUID, Amounts] = defaultdict(dict)
    for row in await connection.fetch(
        f"SELECT allocation_id, sku, {sums}, {counts} FROM billing.segment GROUP BY 1, 2"
    ):
        for cause in _CAUSES:
            value = (Fraction(row[cause]), int(row.get(f"{cause}_seconds", 0)))
            if any(value):
                found[row["allocation_id"]][cause, row["sku"]] = value
    return found


def _uuid_of(text: str) -> UUID:
    """The row's key of an id in the API: behind the prefix its 128 bits in Crockford's base 32, lower case."""
    number = 0
    for digit in text.rpartition("_")[2]:
        number = number * 32 + "0123456789abcdefghjkmnpqrstvwxyz".index(digit)
    return UUID(int=number)


def _held(body: Mapping[str, Any]) -> dict[str, int]:
    term = body["term"]
    amounts: dict[str, int] = defaultdict(int)
    amounts[f"cpu/*/{term}"] = body["cpu_milli"]
    amounts[f"memory/*/{term}"] = body["memory_mib"]
    for share in body["devices"]:
        amounts[f"device/{share['flavor']}/{term}"] += share["milli"]
    return dict(amounts)


async def _history(connection: asyncpg.Connection, allocations: Bodies) -> list[dict[str, Any]]:
    """The history that the reference model reads."""
    history: list[dict[str, Any]] = []
    for row in await connection.fetch("SELECT * FROM billing.price_version ORDER BY valid_from"):
        assert row["tenant_id"] is None, "the checker knows public prices only"
        prices = {line["sku"]: str(_unit_price(line["sku"], Decimal(line["per_hour"]))) for line in row["lines"]}
        history.append(
            {
                "type": "price",
                "version": str(row["id"]),
                "tenant": None,
                "at": _microseconds(row["valid_from"]),
                "minimum_seconds": row["minimum_seconds"],
                "unit_prices": prices,
            }
        )
    for name, body in allocations.items():
        event = {"type": "bound", "tenant": body["tenant_id"], "at": _at(body["bound_at"]), "amounts": _held(body)}
        events: list[dict[str, Any]] = [event]
        if body["active_at"]:
            events.append({"type": "activated", "at": _at(body["active_at"])})
        if body["waived_from"]:
            events.append({"type": "provider_stop_requested", "at": _at(body["waived_from"])})
        if body["released_at"]:
            fault = body["reason"] in _PROVIDER_ENDS
            events.append({"type": "released", "at": _at(body["released_at"]), "provider_fault": fault})
        history += [{"allocation": name, **one} for one in events]
    return history


def _unit_price(sku: str, per_hour: Decimal) -> Decimal:
    exact = _DIVIDING.divide(per_hour, Decimal(3600 * _SMALLEST[sku.split("/")[0]]))
    return exact.quantize(_UNIT_PRICE_DIGITS, ROUND_HALF_UP, _DIVIDING)


async def _statement(
    connection: asyncpg.Connection,
    operator: Caller,
    tenant: str,
    history: list[dict[str, Any]],
    allocations: Bodies,
) -> list[str]:
    answer = await operator("GET", f"/v1/statements/current?tenant_id={tenant}", expect=200)
    statement = answer.json()
    start, end, as_of = (_at(statement[key]) for key in ("period_start", "period_end", "as_of"))
    model = bill(history, tenant, start, end, until=as_of)
    findings = []
    said = {kind: Fraction(money["amount"]) for kind, money in statement["subtotals"].items()}
    kinds = {kind for kind, _ in model.amounts} | said.keys()
    for kind in sorted(kinds):
        if said.get(kind, Fraction(0)) != model.cause(kind):
            findings.append(f"{tenant}: {kind} is {said.get(kind)}, the model says {model.cause(kind)}")
    total = Fraction(statement["total"]["amount"])
    if total != model.total:
        findings.append(f"{tenant}: the statement says {total}, the model {model.total}")
    charges = await operator.items(f"/v1/charges?tenant_id={tenant}&limit=200")
    lines = sum((Fraction(charge["amount"]["amount"]) for charge in charges), Fraction(0))
    if lines + said.get("rounding", Fraction(0)) != total:
        findings.append(f"{tenant}: the charges sum to {lines}, the statement says {total}")
    findings += await _written(connection, tenant, charges, allocations)
    return findings + await _reconciliation(operator, tenant)


async def _written(
    connection: asyncpg.Connection, tenant: str, charges: list[dict[str, Any]], allocations: Bodies
) -> list[str]:
    """With nothing running, the charges that the API shows are the rows of the table."""
    mine = [name for name, body in allocations.items() if body["tenant_id"] == tenant]
    if any(allocations[name]["released_at"] is None for name in mine):
        return []
    kept = await connection.fetchval(
        "SELECT coalesce(sum(coalesce(usage, 0) + coalesce(round_up, 0) + coalesce(minimum, 0)"
        " + coalesce(price_difference, 0) + coalesce(waiver, 0)), 0) FROM billing.segment WHERE tenant_id ="
        " (SELECT tenant_id FROM scheduler.outbox WHERE subject = ANY($1) LIMIT 1)",
        mine,
    )
    shown = sum((Fraction(charge["amount"]["amount"]) for charge in charges), Fraction(0))
    return [] if Fraction(kept) == shown else [f"{tenant}: {kept} is written, {shown} is shown"]


async def _reconciliation(operator: Caller, tenant: str) -> list[str]:
    answer = (await operator("GET", f"/v1/reconciliations?tenant_id={tenant}", expect=200)).json()
    findings = [f"conservation: {line}" for line in answer["conservation"] if line["difference"] != 0]
    if not answer["conservation"]:
        findings.append("conservation: no node is accounted for")
    if Decimal(answer["bill"]["difference"]["amount"]) != 0:
        findings.append(f"bill: {answer['bill']}")
    return findings


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _at(text: str) -> int:
    return _microseconds(datetime.fromisoformat(text))
