"""The audit trail on the screen: all services' trails in one order, by names, narrowed to what is asked for."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millpond_contracts.bodies.audit import AuditView
from millpond_contracts.bodies.tenants import ApiKeyView, Role
from millpond_contracts.ids import ApiKeyId
from tests.unit.client.commands import run
from tests.unit.client.fake_api import FakeApi, page
from tests.unit.client.things import NOW, TENANT

pytestmark = pytest.mark.unit

KEY = ApiKeyId.new()


def row(action: str, at: datetime, **states: dict[str, Any]) -> AuditView:
    return AuditView(
        seq=1,
        at=at,
        actor=f"operator:{KEY}",
        role="operator",
        tenant_id=None,
        action=action,
        object=f"object-of-{action}",
        before=states.get("before"),
        after=states.get("after"),
        request_id="req-1",
        hash=None,
    )


@pytest.fixture
def api() -> FakeApi:
    key = ApiKeyView(
        api_key_id=KEY,
        name="laptop",
        role=Role.OPERATOR,
        tenant_id=TENANT,
        project_id=None,
        expires_at=None,
        revoked_at=None,
        last_used_at=None,
        created_at=NOW,
        generation=1,
    )
    api = FakeApi().on("GET", "/v1/api-keys", page([key]))
    for service in ("registry", "quota", "scheduler", "billing", "autoscaler"):
        api.on("GET", f"/v1/audit/{service}", page([]))
    return api


def test_audit_when_several_services_did_something_then_in_order_of_time_and_by_name(api: FakeApi) -> None:
    change = row("tenant.replace", NOW, before={"name": "a", "generation": 1}, after={"name": "b", "generation": 2})
    later = NOW + timedelta(minutes=1)
    api.on("GET", "/v1/audit/quota", page([row("tenant.create", later), change]))
    api.on("GET", "/v1/audit/scheduler", page([row("job.submit", NOW + timedelta(seconds=30))]))
    lines = run(api, "audit").out.splitlines()[2:]
    assert [line.split("laptop (operator)")[1].split()[0] for line in lines] == [
        "tenant.replace",
        "job.submit",
        "tenant.create",
    ]
    assert "name: a -> b" in lines[0]
    assert "generation" not in lines[0]


def test_audit_when_narrowed_then_every_filter_is_asked_for(api: FakeApi) -> None:
    ran = run(
        api,
        *("audit", "--service", "quota", "--who", "laptop", "--what", "tenant", "--object", "ten_x"),
        *("--since", "2026-11-30T12:00Z", "--until", "2026-11-30T13:00Z"),
    )
    params = dict(api.asked("GET", "/v1/audit/quota")[0].url.params)
    assert (ran.code, api.asked("GET", "/v1/audit/billing")) == (0, [])
    assert {name: params[name] for name in ("actor", "action", "object", "newest_first")} == {
        "actor": str(KEY),
        "action": "tenant",
        "object": "ten_x",
        "newest_first": "true",
    }
    times = [datetime.fromisoformat(params[name]) for name in ("since", "until")]
    assert times == [datetime(2026, 11, 30, hour, tzinfo=UTC) for hour in (12, 13)]


def test_audit_when_there_is_more_than_wanted_then_the_newest(api: FakeApi) -> None:
    rows = [row("job.submit", NOW - timedelta(seconds=number)) for number in range(5)]
    api.on("GET", "/v1/audit/scheduler", page(rows)).on("GET", "/v1/audit/quota", page([row("key.make", NOW)]))
    shown = run(api, "audit", "--limit", "2", "-o", "json").out
    assert (shown.count('"action"'), "key.make" in shown) == (2, True)


def test_audit_when_the_service_is_none_then_usage(api: FakeApi) -> None:
    assert run(api, "audit", "--service", "kitchen").code == 2
