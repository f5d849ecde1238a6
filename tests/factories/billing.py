"""Facts, price books and timelines for tests, from short names or from a history of the reference model."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar

from millpond_billing.domain.facts import (
    Activated,
    Bound,
    Fact,
    Holding,
    Parties,
    ProviderStopRequested,
    Released,
    Resized,
)
from millpond_billing.domain.periods import Period
from millpond_billing.domain.prices import PriceBook, PriceLine, PriceVersion
from millpond_billing.domain.rating import Charge
from millpond_billing.domain.statements import Adjustment, Statement, Tally
from millpond_billing.domain.timeline import Timeline, find_timeline
from millpond_contracts.ids import (
    AllocationId,
    JobId,
    NodeId,
    PoolId,
    PriceVersionId,
    ProjectId,
    TaskId,
    TenantId,
    TypedId,
    VirtualPoolId,
)
from millpond_contracts.prices import Sku

SECOND = 1_000_000
HOUR = 3600 * SECOND
# 2026-10-05T08:00:00Z
START = 1_791_187_200 * SECOND
GPU = "device/h100/on_demand"
CPU = "cpu/*/on_demand"
MEMORY = "memory/*/on_demand"

_I = TypeVar("_I", bound=TypedId)


def named(kind: type[_I], name: str) -> _I:
    """The same identifier for the same name, always."""
    return kind(int=uuid.uuid5(uuid.NAMESPACE_OID, f"{kind.__name__}/{name}").int)


def holding(amounts: Mapping[str, int]) -> Holding:
    return Holding.of({Sku.parse(sku): amount for sku, amount in amounts.items()})


def parties(tenant: str = "t1", job: str = "j1", node: str = "n1") -> Parties:
    return Parties(
        tenant_id=named(TenantId, tenant),
        project_id=named(ProjectId, tenant),
        job_id=named(JobId, job),
        task_id=named(TaskId, job),
        virtual_pool_id=named(VirtualPoolId, tenant),
        pool_id=named(PoolId, "pool"),
        node_id=named(NodeId, node),
    )


def price_version(
    name: str,
    unit_prices: Mapping[str, str],
    valid_from: int = 0,
    *,
    tenant: str | None = None,
    minimum_seconds: int = 60,
    valid_to: int | None = None,
    currency: str = "CNY",
) -> PriceVersion:
    """A version that charges exactly these unit prices; their price per hour is not looked at by rating."""
    return PriceVersion(
        version_id=named(PriceVersionId, name),
        tenant_id=None if tenant is None else named(TenantId, tenant),
        currency=currency,
        valid_from=valid_from,
        valid_to=valid_to,
        minimum_seconds=minimum_seconds,
        lines=tuple(PriceLine(Sku.parse(sku), Decimal(0), Decimal(price)) for sku, price in unit_prices.items()),
    )


def book(*versions: PriceVersion) -> PriceBook:
    """The book after publishing these versions, earliest first."""
    result = PriceBook(())
    for version in sorted(versions, key=lambda one: one.valid_from):
        result = result.publish(version, now=version.valid_from)
    return result


def facts_of(history: Sequence[Mapping[str, Any]]) -> list[Fact]:
    """The facts that a history of the reference model tells, in its order."""
    return [_fact(generation, event) for generation, event in enumerate(history) if event["type"] != "price"]


def book_of(history: Sequence[Mapping[str, Any]]) -> PriceBook:
    """The price book that a history of the reference model publishes."""
    return book(
        *(
            price_version(
                event["version"],
                event["unit_prices"],
                event["at"],
                tenant=event["tenant"],
                minimum_seconds=event["minimum_seconds"],
            )
            for event in history
            if event["type"] == "price"
        )
    )


def allocation_events(
    name: str = "a1",
    *,
    bound: int = START,
    active: int | None = START,
    released: int | None = None,
    amounts: Mapping[str, int] | None = None,
    tenant: str = "t1",
    provider_fault: bool = False,
    stop: int | None = None,
    resizes: Sequence[tuple[int, Mapping[str, int]]] = (),
) -> list[dict[str, Any]]:
    """The events of one allocation in the reference model's format."""
    events: list[dict[str, Any]] = [
        {"type": "bound", "at": bound, "tenant": tenant, "amounts": dict(amounts or {GPU: 1000})}
    ]
    if active is not None:
        events.append({"type": "activated", "at": active})
    events += [{"type": "resized", "at": at, "amounts": dict(holding)} for at, holding in resizes]
    if stop is not None:
        events.append({"type": "provider_stop_requested", "at": stop})
    if released is not None:
        events.append({"type": "released", "at": released, "provider_fault": provider_fault})
    return [{"allocation": name, **event} for event in events]


def timeline(**parts: Any) -> Timeline:
    """The timeline of one allocation built by `allocation_events`."""
    found = find_timeline(facts_of(allocation_events(**parts)))
    assert found is not None
    return found


def assemble_statement(
    tenant_id: TenantId,
    period: Period,
    currency: str,
    charges: Iterable[Charge],
    adjustments: Sequence[Adjustment] = (),
    previous_digest: str | None = None,
) -> Statement:
    """The statement of these charges, in their order."""
    tally = Tally(tenant_id, period, currency)
    for charge in charges:
        tally.add(charge)
    return tally.statement(adjustments, previous_digest)


def _fact(generation: int, event: Mapping[str, Any]) -> Fact:
    allocation, at = named(AllocationId, event["allocation"]), event["at"]
    match event["type"]:
        case "bound":
            return Bound(allocation, generation, at, parties(event["tenant"]), holding(event["amounts"]))
        case "activated":
            return Activated(allocation, generation, at)
        case "resized":
            return Resized(allocation, generation, at, holding(event["amounts"]))
        case "provider_stop_requested":
            return ProviderStopRequested(allocation, generation, at)
        case "released":
            return Released(allocation, generation, at, "completed", event["provider_fault"])
        case unknown:
            raise AssertionError(f"unknown event {unknown}")
