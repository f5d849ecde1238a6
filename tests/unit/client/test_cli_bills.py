"""Bills on the screen: exact, in the tenant's zone, with what is behind them."""

import json
from decimal import Decimal

import pytest

from millpond.cli.bills import exact
from millpond_contracts.bodies.tenants import Me, Role
from millpond_contracts.ids import JobId
from tests.unit.client.commands import run
from tests.unit.client.fake_api import FakeApi, page
from tests.unit.client.things import TENANT, charge, statement, tenant

pytestmark = pytest.mark.unit

JOB = JobId.new()


@pytest.fixture
def api() -> FakeApi:
    """An operator's API with one tenant that owes something."""
    me = Me(role=Role.OPERATOR, tenant_id=None, project_id=None, api_key_id=None)
    api = FakeApi().on("GET", "/v1/me", me).on("GET", "/v1/tenants", page([tenant()]))
    api.on("GET", f"/v1/tenants/{TENANT}", tenant()).on("GET", "/v1/statements/current", statement())
    return api.on("GET", "/v1/charges", page([charge(JOB), charge(JOB, amount="0.1")]))


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        ("0", "0.00"),
        ("1", "1.00"),
        ("1.5", "1.50"),
        ("0.00020830567625", "0.00020830567625"),
        ("1E+2", "100.00"),
        ("-3.10", "-3.10"),
    ],
)
def test_exact_when_shown_then_no_digit_is_lost(amount: str, shown: str) -> None:
    assert exact(Decimal(amount)) == shown


def test_bill_when_a_tenant_is_named_then_its_parts_its_total_and_its_jobs(api: FakeApi) -> None:
    out = "\n".join(" ".join(line.split()) for line in run(api, "bill", "--tenant", "acme").out.splitlines())
    assert "statement of acme, draft" in out
    assert "period 2026-11-01 to 2026-12-01 (Asia/Shanghai)" in out
    assert "usage 0.00612 CNY" in out
    assert "total 0.01 CNY" in out
    assert f"hello 2 0.10612 CNY {JOB}" in out


def test_bill_when_lines_are_wanted_then_every_one_with_its_arithmetic(api: FakeApi) -> None:
    out = "\n".join(" ".join(line.split()) for line in run(api, "bill", "--tenant", "acme", "--lines").out.splitlines())
    assert "hello usage cpu/*/on_demand 2.00 61 0.18 0.00612 CNY 11-29 12:00:00.000Z 11-29 12:01:01.000Z" in out


def test_bill_when_a_month_is_named_then_it_starts_at_midnight_of_the_tenant(api: FakeApi) -> None:
    run(api, "bill", "--tenant", "acme", "--period", "2026-10")
    (request,) = api.asked("GET", "/v1/statements/current")
    assert dict(request.url.params) == {"tenant_id": str(TENANT), "period_start": "2026-10-01T00:00:00+08:00"}


def test_bill_when_an_operator_names_nobody_then_everybodys_total(api: FakeApi) -> None:
    line = run(api, "bill").out.splitlines()[2]
    assert line.split() == ["acme", "2026-11", "draft", "1", "0.01", "CNY"]


def test_bill_when_a_tenant_asks_then_its_own(api: FakeApi) -> None:
    api.on("GET", "/v1/me", Me(role=Role.VIEWER, tenant_id=TENANT, project_id=None, api_key_id=None))
    assert "statement of acme" in run(api, "bill").out


def test_bill_when_json_is_wanted_then_statement_and_charges(api: FakeApi) -> None:
    document = json.loads(run(api, "bill", "--tenant", "acme", "--lines", "-o", "json").out)
    assert document["total"] == {"amount": "0.01", "currency": "CNY"}
    assert [each["amount"]["amount"] for each in document["charges"]] == ["0.00612", "0.1"]
