"""Reports on the screen: exact, with idle apart; and sums by whatever was asked for."""

import json
from datetime import UTC, datetime
from urllib.parse import parse_qsl

import pytest

from millpond_contracts.bodies.bills import (
    ChargeGroup,
    ChargeKind,
    CostGroup,
    CostKey,
    CostReport,
    FlavorUse,
    FleetCost,
    FleetShare,
)
from millpond_contracts.bodies.tenants import Me, Role
from millpond_contracts.ids import JobId, PoolId
from millpond_contracts.quantities import ExactDecimal, Money
from tests.unit.client.commands import run
from tests.unit.client.fake_api import FakeApi, page
from tests.unit.client.things import TENANT, tenant

pytestmark = pytest.mark.unit

JOB, OTHER, POOL = JobId.new(), JobId.new(), PoolId.new()
AT = datetime(2026, 11, 1, tzinfo=UTC)


def cost(**changes: object) -> CostReport:
    """A report of two jobs that used a third of a committed machine."""
    share = FleetShare.model_validate(
        {
            "pool_id": POOL,
            "market": "committed",
            "provided": ExactDecimal("3"),
            "used": ExactDecimal("1"),
            "held_unbilled": ExactDecimal("0.25"),
            "idle": ExactDecimal("1.75"),
            "unavailable": ExactDecimal("0"),
            "utilisation": ExactDecimal("0.333333"),
        }
    )
    fleet = FleetCost.model_validate(
        share.model_dump(exclude={"pool_id", "market"})
        | {
            "nodes": 1,
            "fixed": ExactDecimal("4.5"),
            "saved": ExactDecimal("1.5"),
            "unused_commitment": ExactDecimal("1.75"),
            "shares": [share],
            "flavors": [
                FlavorUse(
                    resource="cpu",
                    flavor="*",
                    unit="core",
                    provided_hours=ExactDecimal("24"),
                    used_hours=ExactDecimal("8"),
                    utilisation=ExactDecimal("0.333333"),
                )
            ],
            "left_out": [],
        }
    )
    groups = [
        CostGroup(
            job_id=job,
            job_name=name,
            used=ExactDecimal("0.5"),
            held_unbilled=ExactDecimal("0.125"),
            charged=ExactDecimal("0.6"),
        )
        for job, name in ((JOB, "train"), (OTHER, "serve"))
    ]
    fields: dict[str, object] = {
        "items": groups,
        "start_at": AT,
        "end_at": AT,
        "currency": "CNY",
        "group_by": CostKey.JOB,
        "fleet": fleet,
        "used": ExactDecimal("1"),
        "held_unbilled": ExactDecimal("0.25"),
        "charged": ExactDecimal("1.2"),
    }
    return CostReport.model_validate(fields | changes)


def test_report_cost_when_an_operator_asks_then_fleet_jobs_and_what_nobody_used() -> None:
    api = FakeApi().on("GET", "/v1/reports/cost", cost()).on("GET", "/v1/pools", page([]))
    lines = [" ".join(line.split()) for line in run(api, "report", "cost").out.splitlines()]
    assert "a fixed fleet 4.50 for the 1 machines that were there, all the time" in lines
    assert "used 1.00, 33.3 %" in lines
    assert "commitment unused 1.75" in lines
    assert f"{POOL} committed 3.00 1.00 1.75 0.00 33.3 %" in lines
    assert f"train 0.50 0.125 0.60 {JOB}" in lines
    assert "all 1.00 0.25 1.20" in lines


def test_report_cost_when_a_tenant_asks_then_no_fleet_and_the_last_hours_only() -> None:
    api = FakeApi().on("GET", "/v1/reports/cost", cost(fleet=None))
    out = run(api, "report", "cost", "--by", "job", "--last", "2h").out
    assert "fixed fleet" not in out
    (request,) = api.asked("GET", "/v1/reports/cost")
    asked = dict(request.url.params)
    assert asked["group_by"] == "job"
    assert asked["start_at"].endswith("+00:00")


def test_report_cost_when_there_are_several_pages_then_all_groups_are_shown() -> None:
    first = cost(items=[cost().items[0]], next_cursor="more")
    api = FakeApi().on("GET", "/v1/reports/cost", first, cost(items=[cost().items[1]]))
    api.on("GET", "/v1/pools", page([]))
    assert run(api, "report", "cost", "-o", "id").out.split() == [str(JOB), str(OTHER)]
    assert [dict(one.url.params).get("cursor") for one in api.asked("GET", "/v1/reports/cost")] == [None, "more"]


def group(**changes: object) -> ChargeGroup:
    fields: dict[str, object] = {
        "job_id": JOB,
        "job_name": "train",
        "labels": {"team": "vision"},
        "start_at": AT,
        "seconds": 61,
        "subtotals": {ChargeKind.USAGE: Money(amount=ExactDecimal("0.1"), currency="CNY")},
        "amount": Money(amount=ExactDecimal("0.123456789"), currency="CNY"),
    }
    return ChargeGroup.model_validate(fields | changes)


def test_report_charges_when_several_dimensions_are_asked_for_then_a_column_each_and_no_digit_is_lost() -> None:
    me = Me(role=Role.VIEWER, tenant_id=TENANT, project_id=None, api_key_id=None)
    api = FakeApi().on("GET", "/v1/me", me).on("GET", f"/v1/tenants/{TENANT}", tenant())
    api.on("GET", "/v1/charges/sums", page([group(), group(labels={"team": None})]))
    wanted = ("--by", "job", "--by", "day", "--by", "label:team", "--label", "team")
    lines = [" ".join(line.split()) for line in run(api, "report", "charges", *wanted).out.splitlines()]
    assert f"train ({JOB}) 2026-11-01 00:00Z vision 61 0.123456789 CNY" in lines
    assert f"train ({JOB}) 2026-11-01 00:00Z - 61 0.123456789 CNY" in lines
    (request,) = api.asked("GET", "/v1/charges/sums")
    pairs = parse_qsl(request.url.query.decode())
    assert [value for name, value in pairs if name == "group_by"] == ["job", "day", "label:team"]
    assert ("label", "team") in pairs
    assert ("tenant_id", str(TENANT)) in pairs


def test_report_charges_when_an_operator_asks_for_the_last_days_then_of_all_tenants() -> None:
    api = FakeApi().on("GET", "/v1/charges/sums", page([group()]))
    out = run(api, "report", "charges", "--by", "tenant", "--last", "7d", "-o", "json").out
    assert json.loads(out)[0]["amount"] == {"amount": "0.123456789", "currency": "CNY"}
    (request,) = api.asked("GET", "/v1/charges/sums")
    assert "tenant_id" not in dict(request.url.params)
