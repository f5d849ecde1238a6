"""The comparison with the scheduler's live allocations: repairs what is missing, tells it, and is silent otherwise."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import uuid4

import httpx
import pytest
from prometheus_client import REGISTRY

from millpond_billing.loops.reconcile import Reconciler
from millpond_billing.store.tenants import save_tenant
from millpond_billing.usecases.metering import take_allocations
from millpond_contracts.bodies.allocations import AllocationView
from millpond_contracts.ids import AllocationId
from millpond_kernel.clients import ServiceClient
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, acquire_lease
from tests.integration.billing.stage import allocation, states_of, tenant_view

pytestmark = pytest.mark.integration

NOW = datetime(2024, 3, 1, tzinfo=UTC)


@dataclass(slots=True)
class FakeScheduler:
    """Answers as the scheduler's internal routes do; `head` is the last sequence that it published."""

    allocations: dict[AllocationId, AllocationView] = field(default_factory=dict)
    head: int = 0
    away: bool = False

    def has(self, *states: AllocationView) -> None:
        """The scheduler's present states."""
        self.allocations |= {state.allocation_id: state for state in states}

    async def answer(self, request: httpx.Request) -> httpx.Response:
        """The answer to a request."""
        if self.away:
            raise httpx.ConnectError("refused")
        if request.url.path.startswith("/internal/v1/events/"):
            return httpx.Response(200, json={"head": self.head, "events": []})
        noun = request.url.path.rsplit("/", 1)[-1]
        live = noun.startswith("live-")
        after, limit = request.url.params["after"], 2
        found = sorted(
            (str(key), one) for key, one in self.allocations.items() if not (live and one.released_at is not None)
        )
        page = [(key, one) for key, one in found if key > after][:limit]
        following = page[-1][0] if len(page) == limit else None
        told = {"allocation_id", "generation"} if noun == "live-generations" else None
        items = [one.model_dump(mode="json", include=told) for _, one in page]
        return httpx.Response(200, json={"as_of_seq": self.head, "items": items, "next": following})


@dataclass(slots=True)
class Scene:
    """A reconciler beside a scheduler that can be told what it has."""

    database: Database
    scheduler: FakeScheduler
    reconciler: Reconciler
    lease: Lease

    async def passes(self, count: int = 1) -> int:
        """Runs passes; how many alarms they raised."""
        before = _alarms()
        for _ in range(count):
            await self.reconciler.run(NOW, self.lease)
        return round(_alarms() - before)

    async def metered(self, *states: AllocationView) -> None:
        """What billing has metered."""
        async with self.database.begin(SYSTEM) as unit:
            await take_allocations(unit, states)

    async def count(self, table: str) -> int:
        """Rows of a table."""
        async with self.database.begin(SYSTEM) as unit:
            return int(await unit.fetchval(f"SELECT count(*) FROM {table}"))

    async def drift_events(self) -> list[str]:
        """Subjects of the drift events."""
        async with self.database.begin(SYSTEM) as unit:
            rows = await unit.fetch(
                "SELECT subject FROM outbox WHERE type = 'billing.metering_drift_found.v1' ORDER BY id"
            )
        return [row["subject"] for row in rows]


def _alarms() -> float:
    return REGISTRY.get_sample_value("millpond_alarms_total", {"service": "billing", "kind": "metering_drift"}) or 0.0


@pytest.fixture
async def scene(database: Database) -> Scene:
    scheduler = FakeScheduler()
    client = ServiceClient("scheduler", "http://scheduler", "", transport=httpx.MockTransport(scheduler.answer))
    lease = await acquire_lease(database, "reconcile", uuid4(), 600)
    assert lease is not None
    return Scene(database, scheduler, Reconciler(database, client, patience_seconds=0.0), lease)


async def test_pass_when_both_agree_then_silent(scene: Scene) -> None:
    tenant = tenant_view()
    states = [states_of(allocation(tenant.tenant_id))[1] for _ in range(5)]
    scene.scheduler.has(*states)
    await scene.metered(*states)
    assert await scene.passes(3) == 0
    assert await scene.drift_events() == []


async def test_pass_when_allocations_are_missing_then_repaired_once_with_event_and_alarm(scene: Scene) -> None:
    tenant = tenant_view()
    async with scene.database.begin(SYSTEM) as unit:
        await save_tenant(unit, tenant)
    never_told, half_told, end_missed = (states_of(allocation(tenant.tenant_id)) for _ in range(3))
    await scene.metered(half_told[0], end_missed[1])
    scene.scheduler.has(never_told[1], half_told[1], end_missed[2])
    assert await scene.passes() == 0, "one look is not enough: the events may be on their way"
    assert await scene.passes() == 3
    assert await scene.passes(2) == 0
    wanted = {str(one[0].allocation_id) for one in (never_told, half_told, end_missed)}
    assert set(await scene.drift_events()) == wanted
    assert await scene.count("allocation_view") == 3
    assert await scene.count("segment") == 2


async def test_pass_when_events_are_in_flight_or_arrive_between_then_no_drift(scene: Scene) -> None:
    tenant = tenant_view()
    states = states_of(allocation(tenant.tenant_id))
    scene.scheduler.has(states[0])
    scene.scheduler.head = 1
    assert await scene.passes(3) == 0, "metering has not applied what was published"
    scene.scheduler.head = 0
    assert await scene.passes() == 0
    await scene.metered(states[0])
    scene.scheduler.has(states[1])
    assert await scene.passes() == 0, "the first difference is gone, this is another"
    await scene.metered(states[1])
    assert await scene.passes(2) == 0
    assert await scene.drift_events() == []


async def test_pass_when_the_scheduler_does_not_know_what_is_held_then_told_once_and_kept(scene: Scene) -> None:
    states = states_of(allocation(tenant_view().tenant_id))
    await scene.metered(states[1])
    assert await scene.passes(5) == 1
    assert await scene.drift_events() == [str(states[1].allocation_id)]
    assert await scene.count("allocation_view") == 1


async def test_pass_when_the_scheduler_is_away_then_waits(scene: Scene) -> None:
    await scene.metered(states_of(allocation(tenant_view().tenant_id))[1])
    scene.scheduler.away = True
    assert await scene.passes(3) == 0
    assert await scene.drift_events() == []
