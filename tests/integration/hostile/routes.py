"""Every route of every service and who may use it. A test holds this table against what the applications describe."""

from collections.abc import Iterator
from dataclasses import dataclass

from millpond_contracts.bodies.tenants import Role

OPERATOR = frozenset({Role.OPERATOR})
ADMIN = OPERATOR | {Role.TENANT_ADMIN}
MEMBER = ADMIN | {Role.MEMBER}
READER = MEMBER | {Role.VIEWER}
CATALOGUE = READER | {Role.SERVICE}
NODE = frozenset({Role.NODE})
SERVICE = frozenset({Role.SERVICE})
# Operators, and the autoscaler for nodes that it ordered.
KEEPER = OPERATOR | SERVICE
EVERYBODY = frozenset(Role)
# Routes that take no credentials in a header: they carry their own proof in the body, or tell nothing.
OPEN: frozenset[Role] = frozenset()

PUBLISHERS = ("quota", "registry", "scheduler", "billing", "autoscaler")

PUBLIC: dict[str, frozenset[Role]] = {
    "GET /v1/tenants": READER,
    "POST /v1/tenants": OPERATOR,
    "GET /v1/tenants/{tenant_id}": READER,
    "PUT /v1/tenants/{tenant_id}": OPERATOR,
    "DELETE /v1/tenants/{tenant_id}": OPERATOR,
    "GET /v1/projects": READER,
    "POST /v1/projects": ADMIN,
    "GET /v1/projects/{project_id}": READER,
    "DELETE /v1/projects/{project_id}": ADMIN,
    "GET /v1/api-keys": ADMIN,
    "POST /v1/api-keys": ADMIN,
    "GET /v1/api-keys/{api_key_id}": ADMIN,
    "PUT /v1/api-keys/{api_key_id}/role": ADMIN,
    "POST /v1/api-keys/{api_key_id}/revoke": ADMIN,
    "POST /v1/tokens": OPEN,
    "GET /v1/me": EVERYBODY,
    "GET /v1/virtual-pools": READER,
    "POST /v1/virtual-pools": OPERATOR,
    "GET /v1/virtual-pools/{virtual_pool_id}": READER,
    "PATCH /v1/virtual-pools/{virtual_pool_id}": OPERATOR,
    "DELETE /v1/virtual-pools/{virtual_pool_id}": OPERATOR,
    "GET /v1/virtual-pools/{virtual_pool_id}/alerts": READER,
    "GET /v1/reservations": READER,
    "POST /v1/reservations": OPERATOR,
    "GET /v1/reservations/{reservation_id}": READER,
    "DELETE /v1/reservations/{reservation_id}": OPERATOR,
    "GET /v1/packings": OPERATOR,
    "POST /v1/packings": OPERATOR,
    "GET /v1/packings/{packing_id}": OPERATOR,
    "POST /v1/packings/{packing_id}/accept": OPERATOR,
    "POST /v1/packings/{packing_id}/withdraw": OPERATOR,
    "GET /v1/pools": CATALOGUE,
    "POST /v1/pools": OPERATOR,
    "GET /v1/pools/{pool_id}": CATALOGUE,
    "PUT /v1/pools/{pool_id}": OPERATOR,
    "DELETE /v1/pools/{pool_id}": OPERATOR,
    "GET /v1/pools/{pool_id}/capacity": CATALOGUE,
    "GET /v1/pools/{pool_id}/shortages": OPERATOR,
    "GET /v1/pools/{pool_id}/loans": OPERATOR,
    "POST /v1/pools/{pool_id}/loans/{loan_id}/return": OPERATOR,
    "GET /v1/flavors": CATALOGUE,
    "POST /v1/flavors": OPERATOR,
    "GET /v1/flavors/{name}": CATALOGUE,
    "PUT /v1/flavors/{name}": OPERATOR,
    "DELETE /v1/flavors/{name}": OPERATOR,
    "GET /v1/accelerators": CATALOGUE,
    "GET /v1/devices": OPERATOR,
    "DELETE /v1/devices/{device_id}": OPERATOR,
    "GET /v1/join-tokens": OPERATOR,
    "POST /v1/join-tokens": KEEPER,
    "DELETE /v1/join-tokens/{join_token_id}": OPERATOR,
    "GET /v1/nodes": OPERATOR,
    "GET /v1/nodes/{node_id}": OPERATOR,
    "PATCH /v1/nodes/{node_id}": OPERATOR,
    "DELETE /v1/nodes/{node_id}": KEEPER,
    "GET /v1/nodes/{node_id}/inventory": OPERATOR,
    "GET /v1/nodes/{node_id}/conditions": OPERATOR,
    "POST /v1/nodes/{node_id}/cordon": OPERATOR,
    "POST /v1/nodes/{node_id}/uncordon": KEEPER,
    "POST /v1/nodes/{node_id}/drain": KEEPER,
    "POST /v1/nodes/{node_id}/move": OPERATOR,
    "POST /v1/nodes/join": OPEN,
    "POST /v1/agent/challenges": OPEN,
    "POST /v1/agent/sessions": OPEN,
    "POST /v1/agent/sessions/renew": NODE,
    "PUT /v1/agent/inventory": NODE,
    "POST /v1/agent/ready": NODE,
    "POST /v1/agent/heartbeat": NODE,
    "GET /v1/jobs": READER,
    "POST /v1/jobs": MEMBER,
    "POST /v1/jobs/batch": MEMBER,
    "GET /v1/jobs/{job_id}": READER,
    "POST /v1/jobs/{job_id}/cancel": MEMBER,
    "GET /v1/jobs/{job_id}/explain": READER,
    "GET /v1/jobs/{job_id}/moves": OPERATOR,
    "POST /v1/jobs/{job_id}/moves": OPERATOR,
    "GET /v1/jobs/{job_id}/move-orders": OPERATOR,
    "GET /v1/jobs/{job_id}/logs": READER,
    "GET /v1/jobs/{job_id}/tasks": READER,
    "POST /v1/plans": READER,
    "GET /v1/tasks/{task_id}": READER,
    "GET /v1/allocations": READER,
    "GET /v1/allocations/{allocation_id}": READER,
    "GET /v1/queues/{virtual_pool}": READER,
    "GET /v1/usage": READER,
    "POST /v1/work/poll": NODE,
    "POST /v1/work/reports": NODE,
    "POST /v1/work/logs": NODE,
    "GET /v1/price-books": READER,
    "POST /v1/price-books": OPERATOR,
    "GET /v1/price-books/{price_version_id}": READER,
    "GET /v1/statements": READER,
    "GET /v1/statements/current": READER,
    "GET /v1/statements/{statement_id}": READER,
    "GET /v1/statements/{statement_id}/lines": READER,
    "GET /v1/charges": READER,
    "GET /v1/charges/sums": READER,
    "GET /v1/reports/cost": READER,
    "GET /v1/exports": READER,
    "POST /v1/exports": READER,
    "GET /v1/exports/{export_id}": READER,
    "GET /v1/exports/{export_id}/content": READER,
    "GET /v1/reconciliations": OPERATOR,
    "GET /v1/scaling-policies": OPERATOR,
    "POST /v1/scaling-policies": OPERATOR,
    "GET /v1/scaling-policies/{scaling_policy_id}": OPERATOR,
    "PUT /v1/scaling-policies/{scaling_policy_id}": OPERATOR,
    "DELETE /v1/scaling-policies/{scaling_policy_id}": OPERATOR,
    "GET /v1/scaling-decisions": OPERATOR,
    "GET /v1/scaling-decisions/{scaling_decision_id}": OPERATOR,
    "GET /v1/node-orders": OPERATOR,
    "GET /v1/node-orders/{node_order_id}": OPERATOR,
    "GET /v1/signals": OPERATOR,
    **{f"GET /v1/events/{service}": READER for service in PUBLISHERS},
    **{f"GET /v1/audit/{service}": ADMIN for service in PUBLISHERS},
}
INTERNAL: dict[str, frozenset[Role]] = {
    **{f"GET /internal/v1/events/{service}": SERVICE for service in PUBLISHERS},
    **{f"GET /internal/v1/snapshot/{service}/nodes": SERVICE for service in PUBLISHERS},
}


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table."""

    method: str
    template: str
    roles: frozenset[Role]

    @property
    def parameter(self) -> str | None:
        """The name of the id in the path."""
        _, brace, rest = self.template.partition("{")
        return rest.partition("}")[0] if brace else None

    @property
    def is_list(self) -> bool:
        return self.method == "GET" and self.template in LISTS

    @property
    def needs_if_match(self) -> bool:
        return self.method in ("PUT", "PATCH", "DELETE") and self.template not in _WITHOUT_IF_MATCH

    @property
    def needs_idempotency_key(self) -> bool:
        return self.method == "POST" and self.template in _CREATING

    def __str__(self) -> str:
        return f"{self.method} {self.template}"


# Lists in pages, and how they are ordered.
LISTS: dict[str, str] = {
    "/v1/tenants": "uuid",
    "/v1/projects": "uuid",
    "/v1/api-keys": "uuid",
    "/v1/virtual-pools": "uuid",
    "/v1/virtual-pools/{virtual_pool_id}/alerts": "uuid",
    "/v1/reservations": "uuid",
    "/v1/packings": "uuid",
    "/v1/pools": "uuid",
    "/v1/pools/{pool_id}/loans": "uuid",
    "/v1/flavors": "text",
    "/v1/devices": "uuid",
    "/v1/join-tokens": "uuid",
    "/v1/nodes": "uuid",
    "/v1/jobs": "uuid",
    "/v1/jobs/{job_id}/tasks": "uuid",
    "/v1/allocations": "uuid",
    "/v1/queues/{virtual_pool}": "int",
    "/v1/usage": "text",
    "/v1/price-books": "uuid",
    "/v1/statements": "uuid",
    "/v1/statements/{statement_id}/lines": "text",
    "/v1/charges": "text",
    "/v1/exports": "uuid",
    "/v1/scaling-policies": "uuid",
    "/v1/scaling-decisions": "uuid",
    "/v1/node-orders": "uuid",
    "/v1/signals": "text",
    **{f"/v1/audit/{service}": "int" for service in PUBLISHERS},
}
_CREATING = frozenset(
    f"/v1/{noun}"
    for noun in (
        "tenants",
        "projects",
        "api-keys",
        "virtual-pools",
        "pools",
        "flavors",
        "join-tokens",
        "jobs",
        "jobs/batch",
        "reservations",
        "packings",
        "price-books",
        "exports",
        "scaling-policies",
    )
)
_WITHOUT_IF_MATCH = frozenset({"/v1/agent/inventory", "/v1/devices/{device_id}"})


def every_route() -> Iterator[Route]:
    """The rows of both tables."""
    for text, roles in {**PUBLIC, **INTERNAL}.items():
        method, _, template = text.partition(" ")
        yield Route(method, template, roles)


ROUTES: tuple[Route, ...] = tuple(every_route())
