"""What two tenants used at the same time stands in the charges, sums, statements, reports and exports of each alone."""

from pathlib import Path

import pytest

from millpond_billing.background.work import build_one_export
from millpond_contracts.ids import ExportId, TenantId
from tests.integration.billing.stage import START, Stage, allocation, seconds, share
from tests.integration.services import Caller

pytestmark = pytest.mark.integration

FEBRUARY = "2024-01-31T16:00:00Z"
MARCH = "2024-02-29T16:00:00Z"


async def use(stage: Stage, tenant: TenantId, device: int) -> str:
    """One short allocation of a device; its id."""
    used = allocation(
        tenant,
        devices=(share(device),),
        bound_at=START,
        active_at=START + seconds(1),
        released_at=START + seconds(60),
    )
    await stage.tell(used)
    return str(used.allocation_id)


async def export(stage: Stage, caller: Caller, folder: Path) -> str:
    """A finished export of February; its id."""
    made = await caller("POST", "/v1/exports", {"period_start": FEBRUARY, "format": "csv"}, expect=202)
    export_id = str(made.json()["export_id"])
    assert await build_one_export(stage.billing, ExportId.parse(export_id), folder)
    return export_id


async def everything(caller: Caller, statement: str, exported: str) -> dict[str, str]:
    """Path -> all that the tenant reads of what it used."""
    paths = (
        f"/v1/charges?period_start={FEBRUARY}&limit=200",
        f"/v1/charges/sums?period_start={FEBRUARY}&group_by=tenant&group_by=job",
        "/v1/statements",
        f"/v1/statements/{statement}",
        f"/v1/statements/{statement}/lines",
        f"/v1/reports/cost?start_at={FEBRUARY}&end_at={MARCH}",
        "/v1/exports",
        f"/v1/exports/{exported}",
        f"/v1/exports/{exported}/content",
        "/v1/events/billing?after=0&follow=false",
    )
    return {path: (await caller("GET", path, expect=200)).text for path in paths}


async def test_money_when_two_tenants_used_at_once_then_each_reads_its_own(stage: Stage, tmp_path: Path) -> None:
    (acme, acme_caller), (other, other_caller) = await stage.tenant("acme"), await stage.tenant("other")
    acme_used, other_used = await use(stage, acme, 101), await use(stage, other, 102)
    for tenant in (acme, other):
        await stage.close_statements(tenant)
    folder = tmp_path / "exports"
    found = {}
    for caller in (acme_caller, other_caller):
        (statement, *_) = (await caller("GET", "/v1/statements", expect=200)).json()["items"]
        found[caller.credentials] = str(statement["statement_id"]), await export(stage, caller, folder)
    acme_ids, other_ids = found[acme_caller.credentials], found[other_caller.credentials]

    mine = await everything(acme_caller, *acme_ids)
    assert acme_used in mine[f"/v1/exports/{acme_ids[1]}/content"]
    assert str(acme) in mine[f"/v1/statements/{acme_ids[0]}"]
    foreign = (str(other), other_used, *other_ids)
    assert [(path, one) for path, text in mine.items() for one in foreign if one in text] == []

    for path in await everything(other_caller, *other_ids):
        if any(one in path for one in other_ids):
            assert (await acme_caller("GET", path)).status_code == 404, path
