"""The command line's reservations, and limits that are lowered with a grace."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest

from millpond_contracts.bodies.reservations import ReservationSpec, ReservationView
from millpond_contracts.bodies.tenants import VirtualPoolChange
from millpond_contracts.ids import ReservationId
from tests.unit.client.commands import run
from tests.unit.client.fake_api import FakeApi, page
from tests.unit.client.things import POOL, TENANT, VIRTUAL_POOL, virtual_pool

pytestmark = pytest.mark.unit

START = datetime(2031, 5, 1, 8, tzinfo=UTC)


def reservation(ends_at: datetime | None = START + timedelta(hours=12)) -> ReservationView:
    return ReservationView(
        reservation_id=ReservationId.new(),
        tenant_id=TENANT,
        virtual_pool_id=VIRTUAL_POOL,
        pool_id=POOL,
        flavor="h100-sxm",
        device_milli=8000,
        starts_at=START,
        ends_at=ends_at,
        labels={},
        cancelled_at=None,
        created_at=START,
        generation=3,
    )


def test_reservation_when_created_then_its_window_and_amount_are_sent() -> None:
    api = FakeApi().on("GET", "/v1/virtual-pools", page([virtual_pool()])).on("POST", "/v1/reservations", reservation())
    ran = run(
        api,
        *("reservation", "create", "main", "--flavor", "h100-sxm", "--devices", "8"),
        *("--from", "2031-05-01T16:00+08:00", "--for", "12h"),
    )
    (request,) = api.asked("POST", "/v1/reservations")
    sent = ReservationSpec.model_validate_json(request.content)
    assert (sent.virtual_pool_id, sent.flavor, sent.device_milli) == (VIRTUAL_POOL, "h100-sxm", 8000)
    assert (sent.starts_at, sent.ends_at) == (START, START + timedelta(hours=12))
    assert (ran.code, "8 h100-sxm held from" in ran.out) == (0, True)


def test_reservation_when_the_time_cannot_be_read_then_nothing_is_sent() -> None:
    api = FakeApi()
    ran = run(api, *("reservation", "create", "main", "--flavor", "f", "--devices", "1", "--from", "tomorrow"))
    assert (ran.code, "expected a time such as 2031-05-01" in ran.err) == (2, True)
    assert api.requests == []


def test_reservation_when_cancelled_then_at_the_generation_that_was_read() -> None:
    found = reservation(ends_at=None)
    path = f"/v1/reservations/{found.reservation_id}"
    api = FakeApi().on("GET", path, found).on("DELETE", path, httpx.Response(204))
    ran = run(api, "reservation", "cancel", str(found.reservation_id))
    (request,) = api.asked("DELETE", path)
    assert (ran.code, request.headers["if-match"]) == (0, '"3"')


def test_reservations_when_listed_then_each_is_shown() -> None:
    api = (
        FakeApi()
        .on("GET", "/v1/reservations", page([reservation(), reservation(ends_at=None)]))
        .on("GET", "/v1/virtual-pools", page([virtual_pool()]))
    )
    ran = run(api, "reservation", "list")
    assert (ran.code, ran.out.count("h100-sxm")) == (0, 2)


def test_limit_when_lowered_with_reclaim_then_the_grace_is_sent() -> None:
    pool = virtual_pool()
    path = f"/v1/virtual-pools/{pool.virtual_pool_id}"
    api = FakeApi().on("GET", "/v1/virtual-pools", page([pool])).on("PATCH", path, pool)
    assert run(api, "limit", "set", pool.name, "--cpu", "1", "--reclaim", "10m").code == 0
    assert run(api, "limit", "set", pool.name, "--cpu", "1").code == 0
    sent = [VirtualPoolChange.model_validate_json(request.content) for request in api.asked("PATCH", path)]
    assert [(change.reclaim, change.reclaim_grace_seconds) for change in sent] == [(True, 600), (False, 300)]
