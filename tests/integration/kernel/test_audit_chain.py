"""The audit trail is a chain: what was changed or taken out afterwards is found."""

from typing import Any

import pytest
from pydantic import BaseModel

from millpond_contracts.bodies.tenants import Role
from millpond_contracts.ids import TenantId
from millpond_kernel.audit import audit
from millpond_kernel.db import SYSTEM
from millpond_kernel.tenancy import Principal
from millpond_kernel.verify_audit import verify_audit
from tests.integration.kernel.stage import Stage, run_as_owner

pytestmark = pytest.mark.integration


class Thing(BaseModel):
    """Something with secrets at every depth."""

    name: str
    secret: str
    parts: list[dict[str, Any]]


CALLER = Principal(Role.OPERATOR, "operator:somebody", 0.0)


async def _record(stage: Stage, count: int) -> None:
    for number in range(count):
        async with stage.publisher.begin(SYSTEM) as unit:
            audit(unit, CALLER, "thing.change", f"thing/{number}")
    await stage.relay().number()


async def _as_owner(stage: Stage, statement: str) -> None:
    # Row-level security is forced on the owner too; only a superuser can tamper.
    await run_as_owner(stage.migrated, statement)


async def test_chain_when_untouched_then_it_holds_and_when_a_row_was_changed_then_found(stage: Stage) -> None:
    assert await verify_audit(stage.publisher) is None
    await _record(stage, 5)
    await _record(stage, 600)
    # What the relay has not chained yet is not part of the chain.
    assert await verify_audit(stage.publisher) is None
    await stage.relay().number()
    assert await verify_audit(stage.publisher) is None
    await _as_owner(stage, "UPDATE quota.audit SET actor = 'operator:nobody' WHERE seq = 3")
    assert await verify_audit(stage.publisher) == 3
    await _as_owner(stage, "UPDATE quota.audit SET actor = 'operator:somebody' WHERE seq = 3")
    assert await verify_audit(stage.publisher) is None


@pytest.mark.parametrize("seq", [1, 3, 5])
async def test_chain_when_a_row_was_taken_out_then_found(stage: Stage, seq: int) -> None:
    await _record(stage, 5)
    await _as_owner(stage, f"DELETE FROM quota.audit WHERE seq = {seq}")
    assert await verify_audit(stage.publisher) == seq


async def test_entry_when_recorded_then_secrets_stay_out_and_the_tenant_stands_in_it(stage: Stage) -> None:
    tenant = TenantId.new()
    caller = Principal(Role.TENANT_ADMIN, "tenant_admin:x", 0.0, tenant_id=tenant)
    after = Thing(name="n", secret="s3cret", parts=[{"name": "p", "env": {"KEY": "s3cret"}, "command": ["s3cret"]}])
    async with stage.publisher.begin(caller.scope) as unit:
        audit(unit, caller, "thing.change", "thing/1", after=after)
    async with stage.publisher.begin(SYSTEM) as unit:
        row = await unit.fetchrow("SELECT * FROM audit")
    assert row is not None
    assert (row["tenant_id"], row["actor"], row["seq"]) == (tenant, "tenant_admin:x", None)
    assert row["after"] == {"name": "n", "parts": [{"name": "p"}]}
