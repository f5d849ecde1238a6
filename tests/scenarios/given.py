"""What a scenario may start from: things that many need and few are about, saved under fixed names."""

from collections.abc import Awaitable, Callable
from typing import Any

from millpond_contracts.resources import Partitioning
from tests.factories.registry import Agent, gpu, inventory
from tests.integration.services import Services
from tests.waiting import eventually

IN_PARTITIONS = Partitioning(
    modes=("mig",), profiles=("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "9g.90gb"), current="mig"
)
FLAVOR = "nvidia-a100-sxm4-80gb"
Saved = dict[str, Any]


async def give_node(services: Services, saved: Saved, wanted: dict[str, Any]) -> None:
    """A pool with a node that takes work: `pool`, `node`, and the credentials `agent`. `devices` = number of GPUs.

    With `number: 2` another node of that pool: `node2`, `agent2`.
    `partitioned` = they are in partition mode, with profiles that the agent can make and one that nobody knows.
    """
    operator = services.as_key()
    name, number = saved["scenario"], wanted.get("number", 1)
    pool = {"name": name, "unreachable_after_seconds": 3600, "lease_seconds": 3600, **wanted.get("pool", {})}
    if number == 1:
        saved["pool"] = (await operator("POST", "/v1/pools", pool, expect=201)).json()["pool_id"]
    token = (await operator("POST", "/v1/join-tokens", {"pool_id": saved["pool"]}, expect=201)).json()["token"]
    agent = Agent(services.http)
    which = "" if number == 1 else f"{number}"
    mode = {"partitioning": IN_PARTITIONS} if wanted.get("partitioned") else {}
    names = [f"nvidia/GPU-{name}{which}-{index}" for index in range(wanted.get("devices", 2))]
    devices = [gpu(index, identity=identity, **mode) for index, identity in enumerate(names)]
    await agent.become_ready(token, inventory(devices), name=f"{name}-{number}")
    saved |= {f"node{which}": agent.node_id, f"agent{which}": agent.token}


async def give_tenant(services: Services, saved: Saved, wanted: dict[str, Any]) -> None:
    """A tenant with keys: `tenant`, and the credentials `admin`, `member`, `viewer`; with `prefix`, `<prefix>_…`."""
    operator = services.as_key()
    prefix = wanted.get("prefix", "")
    spec = {"name": f"{saved['scenario']}-{prefix}".rstrip("-"), **wanted.get("tenant", {})}
    tenant = (await operator("POST", "/v1/tenants", spec, expect=201)).json()["tenant_id"]
    saved[f"{prefix}_tenant".lstrip("_")] = tenant
    for name, role in (("admin", "tenant_admin"), ("member", "member"), ("viewer", "viewer")):
        key = {"name": name, "role": role, "tenant_id": tenant}
        made = (await operator("POST", "/v1/api-keys", key, expect=201)).json()
        saved[f"{prefix}_{name}".lstrip("_")] = made["secret"]


async def give_share(services: Services, saved: Saved, wanted: dict[str, Any]) -> None:
    """A virtual pool of `tenant` in `pool`, known to the scheduler: `share`. `devices`, `cpu` = guaranteed milli."""
    operator = services.as_key()
    limits = {
        "cpu": {"guaranteed": wanted.get("cpu", 4000)},
        "memory": {"guaranteed": 8192},
        "devices": {FLAVOR: {"guaranteed": wanted.get("devices", 2000)}},
    }
    spec = {"name": saved["scenario"], "tenant_id": saved["tenant"], "pool_id": saved["pool"], "limits": limits}

    async def made() -> Any:
        # Until quota has heard of the pool and of what it holds.
        answer = await operator("POST", "/v1/virtual-pools", spec)
        return answer.json() if answer.status_code == 201 else None

    saved["share"] = (await eventually(made))["virtual_pool_id"]

    async def known() -> bool:
        return (await operator("GET", f"/v1/queues/{saved['share']}")).status_code == 200

    await eventually(known)


async def give_prices(services: Services, saved: Saved, wanted: dict[str, Any]) -> None:
    """Prices of `tenant` alone, in force: `prices`. `lines` and all else as in `POST /v1/price-books`."""
    operator = services.as_key()
    made = (await operator("POST", "/v1/price-books", {"tenant_id": saved["tenant"], **wanted}, expect=201)).json()
    saved["prices"] = made["price_version_id"]

    async def in_force() -> bool:
        # They begin a moment ahead; the statement tells the server's time.
        path = f"/v1/statements/current?tenant_id={saved['tenant']}"
        return bool((await operator("GET", path, expect=200)).json()["as_of"] > made["valid_from"])

    await eventually(in_force)


GIVEN: dict[str, Callable[[Services, Saved, dict[str, Any]], Awaitable[None]]] = {
    "node": give_node,
    "tenant": give_tenant,
    "share": give_share,
    "prices": give_prices,
}
