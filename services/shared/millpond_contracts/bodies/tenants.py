"""Tenants, projects, keys, virtual pools and their limits, and the exchange of a key for a token."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StrictInt, StringConstraints, model_validator

from millpond_contracts.bodies.shapes import Incoming, Outgoing
from millpond_contracts.ids import AlertId, ApiKeyId, NodeId, PoolId, ProjectId, TenantId, VirtualPoolId
from millpond_contracts.quantities import Currency, Instant, Labels, Name


class Role(StrEnum):
    """What credentials may do. `operator` acts above tenants; `service` and `node` are machines."""

    OPERATOR = "operator"
    TENANT_ADMIN = "tenant_admin"
    MEMBER = "member"
    VIEWER = "viewer"
    NODE = "node"
    SERVICE = "service"


class TenantState(StrEnum):
    ACTIVE = "active"
    SUSPENDED = "suspended"
    DELETED = "deleted"


class TenantSpec(Incoming):
    """Who pays. `timezone` is an IANA zone that statement periods follow; a change takes effect at the next one."""

    name: Name
    timezone: str = Field("UTC", max_length=64)
    currency: Currency = "CNY"
    labels: Labels = Field(default_factory=dict)


class TenantView(Outgoing):
    tenant_id: TenantId
    name: str
    timezone: str
    currency: str
    state: TenantState
    labels: dict[str, str]
    created_at: Instant
    generation: int


class ProjectSpec(Incoming):
    name: Name
    tenant_id: TenantId | None = Field(None, description="an operator names the tenant; others act in their own")
    labels: Labels = Field(default_factory=dict)


class ProjectView(Outgoing):
    project_id: ProjectId
    tenant_id: TenantId
    name: str
    labels: dict[str, str]
    created_at: Instant
    generation: int


class ApiKeySpec(Incoming):
    """A key for a role in a tenant (none for an operator key), optionally bound to a project."""

    name: Name
    role: Role
    tenant_id: TenantId | None = None
    project_id: ProjectId | None = None
    expires_in_seconds: StrictInt | None = Field(None, ge=1, le=315_360_000)


class ApiKeyView(Outgoing):
    """`secret` holds the whole key, once, in the answer that creates it."""

    api_key_id: ApiKeyId
    name: str
    role: Role
    tenant_id: TenantId | None
    project_id: ProjectId | None
    secret: str | None = None
    expires_at: Instant | None
    revoked_at: Instant | None
    last_used_at: Instant | None
    created_at: Instant
    generation: int


Amount = Annotated[int, Field(strict=True, ge=0, le=1_000_000_000)]


class Limit(Incoming):
    """Four numbers on one resource of a virtual pool, in milli-CPU, MiB or device milli.

    guaranteed = own share; borrow = most above it (default 0); lend = most of the unused guarantee that others may use
    (default 0); hard = absolute cap (default guaranteed + borrow).
    """

    guaranteed: Amount = 0
    borrow: Amount = 0
    lend: Amount = 0
    hard: Amount | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "Limit":
        if self.lend > self.guaranteed:
            raise ValueError(f"lend ({self.lend}) is more than guaranteed ({self.guaranteed})")
        if self.hard is not None and self.hard < self.guaranteed:
            raise ValueError(f"hard ({self.hard}) is less than guaranteed ({self.guaranteed})")
        return self

    @property
    def cap(self) -> int:
        """The number that usage may never pass: hard, bounded by guaranteed + borrow when hard is not given."""
        return self.guaranteed + self.borrow if self.hard is None else self.hard


FlavorName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]


class Limits(Incoming):
    """Limits of a virtual pool. A flavor that is not named has none of it; CPU and memory must be given."""

    cpu: Limit
    memory: Limit
    devices: Annotated[dict[FlavorName, Limit], Field(max_length=256)] = Field(default_factory=dict)


class QueuePolicy(StrEnum):
    """Which of a virtual pool's own jobs goes first; whose turn it is among virtual pools is another matter.

    fifo: the oldest. priority: the highest priority, then the oldest. shortest_job_first: the one whose time limit
    times its devices is least; jobs without a time limit last. fair_share: of the tenant's projects the one that
    holds least of the pool, of its jobs the highest priority.
    """

    FIFO = "fifo"
    PRIORITY = "priority"
    SHORTEST_JOB_FIRST = "shortest_job_first"
    FAIR_SHARE = "fair_share"


class Preemption(StrEnum):
    """Whether a waiting job may stop running work of the same virtual pool.

    never: it waits. lower_priority: work of lower priority is stopped for it, the least costly and no more than it
    needs; only with the policy `priority`. What others borrow is taken back in either case.
    """

    NEVER = "never"
    LOWER_PRIORITY = "lower_priority"


MinimumRuntime = Annotated[
    StrictInt,
    Field(ge=0, le=604_800, description="before that its tasks are not stopped for others; 0 = at any time"),
]


class VirtualPoolSpec(Incoming):
    """A tenant's share of a pool, where its jobs queue."""

    name: Name
    tenant_id: TenantId
    pool_id: PoolId
    limits: Limits
    policy: QueuePolicy = QueuePolicy.PRIORITY
    preemption: Preemption = Preemption.NEVER
    minimum_runtime_seconds: MinimumRuntime = 0
    labels: Labels = Field(default_factory=dict)

    @model_validator(mode="after")
    def _preemption_by_priority(self) -> "VirtualPoolSpec":
        if self.preemption is not Preemption.NEVER and self.policy is not QueuePolicy.PRIORITY:
            raise ValueError(f"preemption {self.preemption.value} goes with the policy priority")
        return self


class VirtualPoolChange(Incoming):
    """New limits or policy; absent parts stay. Lowering admits nothing new and stops nothing.

    With `reclaim`, what is still above the new limits after `reclaim_grace_seconds` is stopped, the least costly tasks
    first. Limits that are changed again without it take that back.
    """

    limits: Limits | None = None
    policy: QueuePolicy | None = None
    preemption: Preemption | None = None
    minimum_runtime_seconds: MinimumRuntime | None = None
    labels: Labels | None = None
    reclaim: bool = False
    reclaim_grace_seconds: StrictInt = Field(300, ge=0, le=604_800)

    @model_validator(mode="after")
    def _reclaim_of_limits(self) -> "VirtualPoolChange":
        if self.reclaim and self.limits is None:
            raise ValueError("reclaim goes with limits")
        return self


class VirtualPoolView(Outgoing):
    virtual_pool_id: VirtualPoolId
    tenant_id: TenantId
    pool_id: PoolId
    name: str
    limits: Limits
    policy: QueuePolicy
    preemption: Preemption = Preemption.NEVER
    minimum_runtime_seconds: int = 0
    labels: dict[str, str]
    deleted: bool = False
    reclaim_at: Instant | None = Field(None, description="from then on what is above the limits is stopped")
    created_at: Instant
    generation: int


class LimitAlert(Outgoing):
    """One crossing of a limit: opened when work had to wait for it, closed when it no longer blocks."""

    alert_id: AlertId
    tenant_id: TenantId
    virtual_pool_id: VirtualPoolId
    resource: str
    flavor: str | None
    used: int
    hard: int
    missing: int
    opened_at: Instant
    closed_at: Instant | None


class Me(Outgoing):
    """Who these credentials are. What has no tenant, project or key is null; an operator has no tenant.

    `currency` and `timezone` are those of the tenant's bill. `expires_at` = when the key ends, null for never;
    `credentials_expire_at` = when these very credentials do, where they are a token.
    """

    role: Role
    tenant_id: TenantId | None
    project_id: ProjectId | None
    api_key_id: ApiKeyId | None
    tenant_name: str | None = None
    timezone: str | None = None
    currency: str | None = None
    project_name: str | None = None
    api_key_name: str | None = None
    expires_at: Instant | None = None
    credentials_expire_at: Instant | None = None
    node_id: NodeId | None = None


class TokenRequest(Incoming):
    """The exchange of an API key for a token, service to service and for people who prefer short-lived tokens."""

    api_key: str = Field(min_length=16, max_length=256)


class TokenAnswer(Outgoing):
    token: str
    expires_at: Instant


class Jwk(Outgoing):
    """One Ed25519 verification key (RFC 8037)."""

    kid: str
    kty: str = "OKP"
    crv: str = "Ed25519"
    x: str
    alg: str = "Ed25519"
    use: str = "sig"


class Jwks(Outgoing):
    keys: list[Jwk]
