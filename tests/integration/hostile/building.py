"""Builds the world: a node, tenants, keys, shares, prices, a job that runs; then lets everything stand still."""

import asyncio
import base64
from typing import Any

import asyncpg

from millpond_contracts.bodies.tenants import Role
from tests.factories.registry import Agent, gpu, inventory
from tests.integration.databases import MigratedDatabase
from tests.integration.hostile.bodies import bodies, job_of, policy_of, reservation_of
from tests.integration.hostile.world import FLAVOR, NAME_CANARY, World, differences
from tests.integration.services import Caller, Services
from tests.waiting import eventually


async def build_world(services: Services, migrated: MigratedDatabase, owner: asyncpg.Connection) -> World:
    """Everything that a hostile caller could reach for; afterwards the workers stand still."""
    world = World(services, owner, Agent(services.http))
    operator = services.as_key()
    world.keys |= {Role.OPERATOR: services.operator_key}
    world.keys[Role.SERVICE] = services.settings["quota"].service_key.get_secret_value()
    await _join(world, operator)
    await _make_tenant(world, operator, "acme", world.ids, world.keys)
    await _make_tenant(world, operator, "other", world.other_ids, world.others)
    await _make_prices(world, operator)
    await _make_policy(world, operator)
    await _make_reservation(world, operator)
    await _run_job(world)
    await _spoil_credentials(world, operator)
    exported = (await services.as_key(world.keys[Role.TENANT_ADMIN])("POST", "/v1/exports", {}, expect=202)).json()
    world.ids["export_id"] = exported["export_id"]
    world.ids["statement_id"] = "stmt_01m8mrpz00000000000000000z"
    await _stand_still(world)
    return world


async def _join(world: World, operator: Caller) -> None:
    pool = {"name": "metal", "allow_oversubscription": True, "lease_seconds": 3600, "unreachable_after_seconds": 3600}
    world.ids["pool_id"] = (await operator("POST", "/v1/pools", pool, expect=201)).json()["pool_id"]
    made = (await operator("POST", "/v1/join-tokens", {"pool_id": world.ids["pool_id"]}, expect=201)).json()
    world.join_token, world.ids["join_token_id"] = made["token"], made["join_token_id"]
    await world.agent.become_ready(made["token"], inventory([gpu(0), gpu(1)]))
    world.ids["node_id"] = world.agent.node_id
    world.keys[Role.NODE] = world.agent.token
    node = (await operator("GET", f"/v1/nodes/{world.agent.node_id}", expect=200)).json()
    world.ids["device_id"] = node["devices"][0]["device_id"]
    flavor = {"name": "own-flavor", "selector": {"vendor": "nobody"}}
    world.ids["name"] = (await operator("POST", "/v1/flavors", flavor, expect=201)).json()["name"]


async def _make_tenant(world: World, operator: Caller, name: str, ids: dict[str, str], keys: dict[Role, str]) -> None:
    spec = {"name": name, "labels": {"note": NAME_CANARY if name == "acme" else "-"}}
    tenant = (await operator("POST", "/v1/tenants", spec, expect=201)).json()["tenant_id"]
    ids["tenant_id"] = tenant
    project = {"name": f"project-{name}", "tenant_id": tenant}
    ids["project_id"] = (await operator("POST", "/v1/projects", project, expect=201)).json()["project_id"]
    for role in (Role.TENANT_ADMIN, Role.MEMBER, Role.VIEWER):
        spec = {"name": role.value.replace("_", "-"), "role": role.value, "tenant_id": tenant}
        made = (await operator("POST", "/v1/api-keys", spec, expect=201)).json()
        keys[role], ids["api_key_id"] = made["secret"], made["api_key_id"]
    share = {
        "name": "canary-of-acme" if name == "acme" else "share",
        "tenant_id": tenant,
        "pool_id": world.ids["pool_id"],
        "limits": {
            "cpu": {"guaranteed": 4000},
            "memory": {"guaranteed": 8192},
            "devices": {FLAVOR: {"guaranteed": 500, "borrow": 500}},
        },
    }

    async def created() -> Any:
        answer = await operator("POST", "/v1/virtual-pools", share)
        return answer.json() if answer.status_code == 201 else None

    ids["virtual_pool_id"] = ids["virtual_pool"] = (await eventually(created))["virtual_pool_id"]


async def _make_prices(world: World, operator: Caller) -> None:
    """A price of acme's own; billing must have heard of the tenant."""
    spec = {"lines": [{"sku": "device/*/on_demand", "per_hour": "3.6"}], "tenant_id": world.ids["tenant_id"]}

    async def published() -> Any:
        answer = await operator("POST", "/v1/price-books", spec)
        return answer.json() if answer.status_code == 201 else None

    world.ids["price_version_id"] = (await eventually(published))["price_version_id"]


async def _make_policy(world: World, operator: Caller) -> None:
    """A scaling policy; the autoscaler must have heard of the pool. Nothing was decided or ordered."""

    async def made() -> Any:
        answer = await operator("POST", "/v1/scaling-policies", policy_of(world, "A100 SXM4 80GB"))
        return answer.json() if answer.status_code == 201 else None

    world.ids["scaling_policy_id"] = (await eventually(made))["scaling_policy_id"]
    world.ids["scaling_decision_id"] = "decision_01m8mrpz00000000000000000z"
    world.ids["node_order_id"] = "norder_01m8mrpz00000000000000000z"


async def _make_reservation(world: World, operator: Caller) -> None:
    """A reservation of acme's, of devices that its limits leave room for; no node was lent."""

    async def made() -> Any:
        answer = await operator("POST", "/v1/reservations", reservation_of(world, 2080))
        return answer.json() if answer.status_code == 201 else None

    world.ids["reservation_id"] = (await eventually(made))["reservation_id"]
    world.ids["packing_id"] = "pack_01m8mrpz00000000000000000z"
    world.ids["loan_id"] = "loan_01m8mrpz00000000000000000z"


async def _run_job(world: World) -> None:
    """A job that runs and has written a log, and one that waits for the limit."""
    member = world.services.as_key(world.keys[Role.MEMBER])
    await world.agent.send("POST", "/v1/work/poll", bodies(world)["POST /v1/work/poll"], expect=200)
    body = job_of(world)
    body["groups"][0]["requires"] = {}

    async def submitted() -> Any:
        answer = await member("POST", "/v1/jobs", body)
        return answer.json() if answer.status_code == 201 else None

    job = await eventually(submitted)
    world.ids["job_id"] = job["job_id"]

    async def assigned() -> Any:
        answer = await world.agent.send("POST", "/v1/work/poll", bodies(world)["POST /v1/work/poll"], expect=200)
        return answer.json()["assignments"]

    world.allocation = (await eventually(assigned))[0]
    world.ids |= {key: world.allocation[key] for key in ("allocation_id", "task_id")}
    reports = bodies(world)["POST /v1/work/reports"]
    reports["reports"] = [
        {**reports["reports"][0], "kind": kind, "sequence": number} for number, kind in ((1, "starting"), (2, "active"))
    ]
    await world.agent.send("POST", "/v1/work/reports", reports, expect=200)
    await world.agent.send("POST", "/v1/work/logs", bodies(world)["POST /v1/work/logs"], expect=200)
    await member("POST", "/v1/jobs", body, expect=201)


async def _spoil_credentials(world: World, operator: Caller) -> None:
    """Credentials that were right once, or nearly are."""
    spec = {"name": "spoilt", "role": "viewer", "tenant_id": world.ids["tenant_id"]}
    expired = (await operator("POST", "/v1/api-keys", {**spec, "expires_in_seconds": 1}, expect=201)).json()
    spec = {**spec, "name": "revoked"}
    revoked = (await operator("POST", "/v1/api-keys", spec, expect=201)).json()
    await operator("POST", f"/v1/api-keys/{revoked['api_key_id']}/revoke", expect=200)
    token = (await operator("POST", "/v1/tokens", {"api_key": world.keys[Role.VIEWER]}, expect=200)).json()["token"]
    head, body, signature = token.split(".")
    swapped = "A" if signature[10] != "A" else "B"
    claims = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).replace(b"viewer", b"operator")
    raised = base64.urlsafe_b64encode(claims).rstrip(b"=").decode()
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').rstrip(b"=").decode()
    key = world.keys[Role.VIEWER]
    await asyncio.sleep(1.1)
    world.bad_credentials = {
        "an expired key": expired["secret"],
        "a revoked key": revoked["secret"],
        "a key with another secret": key[:-1] + ("0" if key[-1] != "0" else "1"),
        "a key of nobody": f"mp_{'0' * 26}_{'0' * 64}",
        "a token with another signature": f"{head}.{body}.{signature[:10]}{swapped}{signature[11:]}",
        "a token with a higher role": f"{head}.{raised}.{signature}",
        "a token without signature": f"{unsigned}.{raised}.",
        "a join token": world.join_token,
        "no key at all": "nonsense",
    }


async def _stand_still(world: World) -> None:
    """Ends the workers once nothing moves any more, so that every later change of a table is a caller's."""
    before = await world.digest()

    async def settled() -> bool:
        nonlocal before
        await asyncio.sleep(0.3)
        after = await world.digest()
        moved = [name for name in differences(before, after) if name.endswith((".outbox", ".alert", ".audit"))]
        before = after
        return not moved

    await eventually(settled, 20)
    world.services.stop.set()
    await asyncio.sleep(1.5)
