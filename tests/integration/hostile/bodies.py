"""A body that each route takes, as full as it can be: what the hostile ones are made from."""

import base64
from typing import Any

from millpond_contracts.bodies.tenants import Role
from millpond_contracts.fleets import find_catalogue_entry
from tests.factories.registry import gpu, inventory
from tests.integration.hostile.world import COMMAND_CANARY, ENVIRONMENT_CANARY, FLAVOR, NAME_CANARY, World


def job_of(world: World) -> dict[str, Any]:
    """A job with canaries in what must stay between the tenant and its node."""
    group = {
        "name": "main",
        "count": 1,
        "resources": {
            "cpu_milli": 1000,
            "memory_mib": 1024,
            "devices": [{"kind": "gpu", "count": 1, "milli": 1000, "memory_mib": 1024, "flavors": [FLAVOR]}],
        },
        "requires": {
            "attributes": {"memory_gib": ">=40"},
            "ecosystem": {"runtime": ["cuda"], "frameworks": {"pytorch": ">=2.1"}},
            "labels": {"rack": "1"},
            "arch": ["x86_64"],
            "allow_unknown": True,
        },
        "tolerations": [{"key": "simulated", "value": "yes"}],
        "run": {"command": ["python", COMMAND_CANARY], "env": {"TOKEN": ENVIRONMENT_CANARY}},
        "stop_grace_seconds": 10,
    }
    return {
        "name": NAME_CANARY,
        "virtual_pool": world.ids["virtual_pool_id"],
        "kind": "batch",
        "priority": 50,
        "groups": [group],
        "time_limit_seconds": 3600,
        "retry": {"max": 1, "on": ["node_lost"]},
        "labels": {"team": NAME_CANARY},
        "project_id": world.ids["project_id"],
    }


def bodies(world: World) -> dict[str, dict[str, Any]]:
    """A body that each route takes, as full as it can be."""
    return (
        _bodies_of_quota(world)
        | _bodies_of_registry(world)
        | _bodies_of_agents(world)
        | _bodies_of_scheduler_and_billing(world)
        | _bodies_of_autoscaler(world)
    )


def _bodies_of_quota(world: World) -> dict[str, dict[str, Any]]:
    ids = world.ids
    limit = {"guaranteed": 1000, "borrow": 1, "lend": 1, "hard": 2000}
    limits = {"cpu": limit, "memory": limit, "devices": {FLAVOR: limit}}
    tenant = {"name": "new-tenant", "timezone": "UTC", "currency": "CNY", "labels": {"a": "b"}}
    return {
        "POST /v1/tenants": tenant,
        "PUT /v1/tenants/{tenant_id}": tenant,
        "POST /v1/projects": {"name": "new-project", "tenant_id": ids.get("tenant_id"), "labels": {"a": "b"}},
        "POST /v1/api-keys": {
            "name": "new-key",
            "role": "viewer",
            "tenant_id": ids.get("tenant_id"),
            "project_id": ids.get("project_id"),
            "expires_in_seconds": 60,
        },
        "PUT /v1/api-keys/{api_key_id}/role": {"role": "member"},
        "POST /v1/tokens": {"api_key": world.keys.get(Role.VIEWER)},
        "POST /v1/virtual-pools": {
            "name": "new-share",
            "tenant_id": ids.get("tenant_id"),
            "pool_id": ids.get("pool_id"),
            "limits": limits,
            "policy": "priority",
            "labels": {"a": "b"},
        },
        "PATCH /v1/virtual-pools/{virtual_pool_id}": {"limits": limits, "policy": "fifo", "labels": {"a": "b"}},
        "POST /v1/packings": {"pool_id": ids.get("pool_id")},
        "POST /v1/reservations": reservation_of(world) if "virtual_pool_id" in ids else {},
    }


def reservation_of(world: World, year: int = 2090) -> dict[str, Any]:
    """Half a device of acme's on a day of a year to come."""
    return {
        "virtual_pool_id": world.ids["virtual_pool_id"],
        "flavor": FLAVOR,
        "device_milli": 500,
        "starts_at": f"{year}-01-01T00:00:00Z",
        "ends_at": f"{year}-01-02T00:00:00Z",
        "labels": {"a": "b"},
    }


def _bodies_of_registry(world: World) -> dict[str, dict[str, Any]]:
    ids = world.ids
    pool = {
        "name": "new-pool",
        "priority": 1,
        "selector": {"labels": {"rack": "1"}, "arch": "x86_64", "region": "north", "vendor": "nvidia"},
        "performance_class": "standard",
        "region": "north",
        "zone": "north-a",
        "isolation": "shared",
        "device_sharing": "any",
        "allow_oversubscription": True,
        "unreachable_after_seconds": 30,
        "lease_seconds": 300,
        "stop_grace_seconds": 30,
        "reference_task_milli": 1000,
        "labels": {"a": "b"},
    }
    flavor = {
        "name": "new-flavor",
        "kind": "gpu",
        "profiles": ["1g.10gb"],
        "selector": {"vendor": "nvidia", "model_key": "x", "memory_mib_min": 1, "memory_mib_max": 2},
    }
    return {
        "POST /v1/pools": pool,
        "PUT /v1/pools/{pool_id}": pool,
        "POST /v1/flavors": flavor,
        "PUT /v1/flavors/{name}": flavor,
        "POST /v1/join-tokens": {
            "pool_id": ids.get("pool_id"),
            "expires_in_seconds": 3600,
            "max_uses": 1,
            "market": "committed",
            "labels": {"a": "b"},
        },
        "PATCH /v1/nodes/{node_id}": {"market": "committed"},
        "POST /v1/pools/{pool_id}/loans/{loan_id}/return": {"deadline_seconds": 60},
        "POST /v1/nodes/{node_id}/cordon": {"generation": 1},
        "POST /v1/nodes/{node_id}/uncordon": {"generation": 1},
        "POST /v1/nodes/{node_id}/drain": {"deadline_seconds": 60, "generation": 1},
        "POST /v1/nodes/{node_id}/move": {"pool_id": ids.get("pool_id"), "deadline_seconds": 60},
    }


def _bodies_of_agents(world: World) -> dict[str, dict[str, Any]]:
    ids = world.ids
    machine = inventory([gpu(0)], labels={"rack": "1"}).model_dump(mode="json", exclude_none=True)
    return {
        "POST /v1/nodes/join": {
            "token": world.join_token,
            "public_key": world.agent.public_key,
            "name": "machine",
            "inventory": machine,
            "labels": {"a": "b"},
        },
        "POST /v1/agent/challenges": {"node_id": ids.get("node_id")},
        "POST /v1/agent/sessions": {
            "node_id": ids.get("node_id"),
            "nonce": "nonce",
            "signature": "A" * 86,
            "boot_id": "boot-1",
            "agent_version": "1",
        },
        "POST /v1/agent/sessions/renew": {},
        "PUT /v1/agent/inventory": {"sequence": 10, "inventory": machine},
        "POST /v1/agent/ready": {"checks": {"cpu": "ok"}},
        "POST /v1/agent/heartbeat": {
            "boot_id": "boot-1",
            "monotonic_ms": 1000,
            "inventory_sequence": 1,
            "signals": [{"target": "node", "name": "cpu_busy", "at_monotonic_ms": 1000, "value": 0.5}],
            "series": [{"target": "node", "name": "cpu_busy", "at_monotonic_ms": [1000], "values": [0.5]}],
            "conditions": [{"target": "node", "name": "disk_full", "open": True, "evidence": "text"}],
        },
    }


def _bodies_of_scheduler_and_billing(world: World) -> dict[str, dict[str, Any]]:
    ids = world.ids
    held = world.allocation or {"allocation_id": "alloc_01m8mrpz00000000000000000z", "epoch": 1}
    names = {"allocation_id": held["allocation_id"], "epoch": held["epoch"]}
    report = {"sequence": 3, "kind": "active", "boot_id": "boot-1", "at_monotonic_ms": 1000, "message": "text"}
    return {
        "POST /v1/jobs": job_of(world) if "virtual_pool_id" in ids else {},
        "POST /v1/jobs/batch": {"jobs": [job_of(world)]} if "virtual_pool_id" in ids else {},
        "POST /v1/jobs/{job_id}/moves": {"plan": "0123456789abcdef", "max_moves": 4, "cool_down_seconds": 60},
        "POST /v1/plans": job_of(world) if "virtual_pool_id" in ids else {},
        "POST /v1/work/poll": {
            "boot_id": "boot-1",
            "sent_monotonic_ms": 1000,
            "held": [names] if world.allocation else [],
            "wait_seconds": 0.0,
        },
        "POST /v1/work/reports": {"boot_id": "boot-1", "sent_monotonic_ms": 1000, "reports": [{**names, **report}]},
        "POST /v1/work/logs": {
            **names,
            "offset": 0,
            "data_base64": base64.b64encode(b"step 1\n").decode(),
            "ended": False,
            "cut": False,
        },
        "POST /v1/price-books": {
            "currency": "CNY",
            "minimum_seconds": 60,
            "lines": [{"sku": "device/*/on_demand", "per_hour": "3.6"}],
            "tenant_id": ids.get("tenant_id"),
            "note": "text",
        },
        "POST /v1/exports": {"tenant_id": ids.get("tenant_id"), "format": "csv"},
    }


def policy_of(world: World, model: str = "H100 SXM5 80GB") -> dict[str, Any]:
    """A scaling policy that does nothing by itself."""
    flavor = find_catalogue_entry(model).flavor
    return {
        "name": f"grows-{flavor}",
        "pool_id": world.ids.get("pool_id"),
        "flavor": flavor,
        "enabled": False,
        "template": {
            "provider": "simulated",
            "model": model,
            "vendor": "nvidia",
            "devices": 8,
            "cpu_milli": 8000,
            "memory_mib": 65_536,
            "arch": "x86_64",
            "region": "north",
            "zone": "north-a",
            "labels": {"a": "b"},
            "simulated": {"boot_seconds": 1.5, "fail_orders": [3], "stock_nodes": 4},
        },
        "rules": {
            "min_nodes": 0,
            "max_nodes": 4,
            "unit_nodes": 1,
            "max_step_nodes": 2,
            "emergency_ratio": 0.8,
            "planned_ratio": 0.65,
            "scale_in_ratio": 0.45,
            "hysteresis_ratio": 0.05,
            "cool_down_seconds": 60,
            "safety_window_seconds": 60,
            "min_node_life_seconds": 60,
            "registration_seconds": 60,
            "drain_seconds": 60,
            "drain_busy_nodes": True,
        },
    }


def _bodies_of_autoscaler(world: World) -> dict[str, dict[str, Any]]:
    return {
        "POST /v1/scaling-policies": policy_of(world),
        "PUT /v1/scaling-policies/{scaling_policy_id}": policy_of(world, "A100 SXM4 80GB"),
    }
