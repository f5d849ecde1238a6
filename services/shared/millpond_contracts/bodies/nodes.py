"""Nodes, devices and flavors as the registry tells them, and what an agent says to the registry."""

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    StrictInt,
    StringConstraints,
    model_serializer,
    model_validator,
)

from millpond_contracts.bodies.pools import PoolView
from millpond_contracts.bodies.scaling import NODE_ORDER_LABEL
from millpond_contracts.bodies.shapes import Incoming, Outgoing
from millpond_contracts.ecosystem import Ecosystem
from millpond_contracts.ids import DeviceId, JoinTokenId, NodeId, PoolId
from millpond_contracts.quantities import (
    Generation,
    Instant,
    Label,
    LabelKey,
    Labels,
    MemoryMib,
    Name,
    Seconds,
)
from millpond_contracts.resources import (
    MAX_SAMPLES,
    DeviceHealth,
    DeviceKind,
    Isolation,
    NodeInventory,
    Signal,
    SignalSeries,
    Slot,
    Taint,
    Text,
    Topology,
)


class NodeState(StrEnum):
    """joined → checking → ready ⇄ unreachable → removed."""

    JOINED = "joined"
    CHECKING = "checking"
    READY = "ready"
    UNREACHABLE = "unreachable"
    REMOVED = "removed"


class CordonReason(StrEnum):
    """Why nothing new may start on a node; each owner removes only its own reason."""

    OPERATOR = "operator"
    HEALTH = "health"
    SCALE_IN = "scale_in"
    MOVE = "move"
    DRAIN = "drain"


class Market(StrEnum):
    """How the operator pays for a node: `committed` costs the same whether it is used or not; `on_demand` can end."""

    COMMITTED = "committed"
    ON_DEMAND = "on_demand"


class FlavorSelector(Incoming):
    """Which devices belong to a flavor; the selector with most given fields wins."""

    vendor: str | None = Field(None, max_length=32)
    model_key: str | None = Field(None, max_length=128)
    model_prefix: str | None = Field(None, max_length=128)
    memory_mib_min: MemoryMib | None = None
    memory_mib_max: MemoryMib | None = None


class FlavorSpec(Incoming):
    """A class of device. `profiles` names partition profiles (MIG) that may be asked for."""

    name: Name
    kind: DeviceKind = DeviceKind.GPU
    selector: FlavorSelector
    profiles: Annotated[tuple[Text, ...], Field(max_length=64)] = ()


class FlavorView(Outgoing):
    name: str
    kind: DeviceKind
    selector: FlavorSelector
    profiles: tuple[str, ...] = ()
    builtin: bool = False
    generation: int


class DeviceView(Outgoing):
    """A device as others need to know it: what it offers, never how busy it is."""

    device_id: DeviceId
    identity: str
    index: int
    uuid: str | None = None
    kind: DeviceKind
    vendor: str
    model: str | None
    model_key: str | None
    flavor: str
    memory_mib: int | None = Field(description="usable memory; null when unknown")
    attributes: dict[str, float] = Field(
        default_factory=dict, description="fp32_tflops, fp16_tflops, bf16_tflops, fp8_tflops, int8_tops, memory_gib, …"
    )
    ecosystem: Ecosystem = Ecosystem()
    partition_modes: tuple[str, ...] = ()
    partition_mode: str | None = Field(
        None, description="`mig` = given out in hardware partitions alone; null = whole or in shares"
    )
    profiles: tuple[str, ...] = Field((), description="the partitions that may be asked for in its present mode")
    slot: Slot = Slot()
    health: DeviceHealth
    health_reason: str | None = None


class DrainView(Outgoing):
    """A drain: at `deadline` the scheduler stops what is left. `generation` names this drain.

    `emptied_at` is set once the scheduler said that nothing is left; `move_to` names the pool that the node enters
    then.
    """

    generation: int
    deadline: Instant
    reason: CordonReason
    move_to: PoolId | None = None
    emptied_at: Instant | None = None


class NodeView(Outgoing):
    """A node as the registry knows it; `schedulable` = ready and no cordon reason.

    `generation` rises with every change of any field, `incarnation` with every agent session.
    """

    node_id: NodeId
    pool_id: PoolId
    name: str
    state: NodeState
    state_since: Instant
    schedulable: bool
    cordon_reasons: tuple[CordonReason, ...] = ()
    drain: DrainView | None = None
    market: Market = Market.ON_DEMAND
    incarnation: int
    boot_id: str | None
    arch: str | None
    cpu_milli: int
    memory_mib: int
    devices: tuple[DeviceView, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    topology: Topology = Topology()
    ecosystem: Ecosystem = Ecosystem()
    runtimes: tuple[str, ...] = ()
    isolation: Isolation = Isolation.NONE
    last_heartbeat_at: Instant | None = None
    created_at: Instant
    generation: int


# What an agent says to the registry.


class JoinTokenSpec(Incoming):
    """A token with which machines may join; `pool_id` fixes the pool, else selectors decide."""

    pool_id: PoolId | None = None
    expires_in_seconds: StrictInt = Field(86_400, ge=60, le=31_536_000)
    max_uses: StrictInt | None = Field(None, ge=1, le=1_000_000)
    market: Market = Field(Market.ON_DEMAND, description="how the nodes that join with it are paid for")
    labels: Labels = Field(default_factory=dict)


class JoinTokenView(Outgoing):
    """`token` is shown once, in the answer that creates it."""

    join_token_id: JoinTokenId
    token: str | None = None
    pool_id: PoolId | None
    expires_at: Instant
    max_uses: int | None
    uses: int
    market: Market = Market.ON_DEMAND
    labels: dict[str, str]
    revoked: bool
    created_at: Instant
    generation: int


PublicKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{43}$")]
Signature = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{86}$")]


class JoinRequest(Incoming):
    """`public_key` is the raw Ed25519 key in unpadded base64url. Joining twice with one key gives the same node."""

    token: str = Field(min_length=8, max_length=128)
    public_key: PublicKey
    name: Name = Field(description="wanted name; made unique in the pool by a suffix")
    inventory: NodeInventory
    labels: Labels = Field(default_factory=dict)


class JoinAnswer(Outgoing):
    node_id: NodeId
    name: str
    pool_id: PoolId


class ChallengeRequest(Incoming):
    node_id: NodeId


class ChallengeAnswer(Outgoing):
    nonce: str
    expires_at: Instant


class SessionRequest(Incoming):
    """`signature` = Ed25519 over the bytes of `millpond-session:<node_id>:<nonce>`, unpadded base64url."""

    node_id: NodeId
    nonce: str = Field(max_length=128)
    signature: Signature
    boot_id: str = Field(min_length=1, max_length=64)
    agent_version: str = Field(max_length=64)


class SessionAnswer(Outgoing):
    """`token` serves registry `/v1/agent/*` and scheduler `/v1/work/*`; `incarnation` rises per session."""

    token: str
    expires_at: Instant
    incarnation: int
    heartbeat_seconds: int
    pool: PoolView


class SessionRenewal(Incoming):
    """Renewing keeps the incarnation: the node token is exchanged for a fresh one before it expires."""


class InventoryReport(Incoming):
    """The whole inventory, pushed at start and on change; `sequence` rises within an incarnation."""

    sequence: StrictInt = Field(ge=0, le=2**53)
    inventory: NodeInventory


class ReadyReport(Incoming):
    """The explicit statement that a node can work; until then it is unschedulable. `checks` name what was verified."""

    checks: Annotated[dict[Text, Text], Field(max_length=64)] = Field(default_factory=dict)


class Heartbeat(Incoming):
    """A sign of life with the signals sampled since the last one (at most 8,192 samples).

    `series` is the shorter form; a registry that takes it says so in its answers.
    """

    boot_id: str = Field(min_length=1, max_length=64)
    monotonic_ms: StrictInt = Field(ge=0, le=2**53)
    inventory_sequence: StrictInt = Field(ge=0, le=2**53)
    signals: Annotated[list[Signal], Field(max_length=MAX_SAMPLES)] = Field(default_factory=list)
    series: Annotated[list[SignalSeries], Field(max_length=MAX_SAMPLES)] = Field(default_factory=list)
    conditions: Annotated[list["Condition"], Field(max_length=256)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_samples(self) -> Self:
        samples = len(self.signals) + sum(len(one.values) for one in self.series)
        if samples > MAX_SAMPLES:
            raise ValueError(f"a heartbeat carries at most {MAX_SAMPLES} samples, this one {samples}")
        return self

    @model_serializer(mode="wrap")
    def _leave_out_no_series(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A registry of the version before refuses the name of what it does not know, even when nothing is in it."""
        written: dict[str, Any] = write(self)
        if not self.series:
            written.pop("series", None)
        return written


class Condition(Incoming):
    """A fact about a node or device that opened or closed; evidence in words."""

    target: str = Field(max_length=128)
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_.]{1,64}$")]
    open: bool
    evidence: str = Field("", max_length=512)


class HeartbeatAnswer(Outgoing):
    """`send_inventory` asks for the whole inventory again; state and cordons are for people on the machine.

    `takes_series` = the next heartbeat may tell its samples as `series`.
    """

    server_at: Instant
    send_inventory: bool
    state: NodeState
    cordon_reasons: tuple[CordonReason, ...] = ()
    heartbeat_seconds: int
    takes_series: bool = False


class DrainRequest(Incoming):
    """Stop new work and empty the node until `deadline_seconds` from now; then what is left is stopped."""

    deadline_seconds: Seconds = 3600
    generation: Generation | None = Field(None, description="refused when the node has another generation")


class CordonRequest(Incoming):
    generation: Generation | None = None


class NodeChange(Incoming):
    """What an operator changes of a node itself; what is left out stays.

    `labels` are set one by one, null takes one back. They win over those that the machine reports, and the labels
    `region`, `zone`, `rack` and `interconnect_domain` say where it stands.
    """

    market: Market | None = None
    labels: Annotated[dict[LabelKey, Label | None], Field(max_length=64)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _owner_of_orders(self) -> Self:
        if NODE_ORDER_LABEL in self.labels:
            raise ValueError(f"the label {NODE_ORDER_LABEL} is told by a join token alone")
        return self


class MoveRequest(Incoming):
    """Move the node to another pool once it is drained."""

    pool_id: PoolId
    deadline_seconds: Seconds = 3600
