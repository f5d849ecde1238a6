"""How much there should be: policies, decisions with their reasons, ordered nodes, demand, and what was measured."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StrictInt, model_validator

from millpond_contracts.bodies.shapes import Incoming, Outgoing
from millpond_contracts.catalogue import load_catalogue
from millpond_contracts.fleets import find_catalogue_entry
from millpond_contracts.ids import (
    NodeId,
    NodeOrderId,
    PoolId,
    ScalingDecisionId,
    ScalingPolicyId,
)
from millpond_contracts.quantities import CpuMilli, Instant, Labels, MemoryMib, Name
from millpond_contracts.resources import DeviceKind, Text

Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Nodes = Annotated[int, Field(strict=True, ge=0, le=10_000)]
ShortSeconds = Annotated[int, Field(strict=True, ge=0, le=604_800, description="seconds")]

NODE_ORDER_LABEL = "millpond/node-order"
"""The label with which an ordered node joins; its value is the order's id. A join token carries it, never a machine."""


class DemandShape(Outgoing):
    """Equal tasks that wait for capacity alone: what one of them needs, and how many there are.

    `flavors` are those that the request and the tenant's limits allow, empty = the task needs no device. `device_milli`
    is per device; `device_memory_mib` null = as it comes. `gang_size` of the tasks start together or not at
    all, 1 = each alone.
    """

    tasks: int
    gang_size: int = 1
    cpu_milli: int
    memory_mib: int
    device_count: int = 0
    device_milli: int = 0
    device_memory_mib: int | None = None
    device_kind: DeviceKind | None = None
    flavors: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[str, ...] = ()
    needs_image: bool = False
    simulated: bool = False


class PoolDemand(Outgoing):
    """What waits in one pool and only capacity holds back; work that a limit holds back is not in it."""

    pool_id: PoolId
    as_of: Instant
    shapes: tuple[DemandShape, ...] = ()
    generation: int


class SimulatedPlan(Incoming):
    """What a provider of simulated nodes does on plan: how long a boot takes, what fails, what there is.

    `fail_orders` names orders of the policy, 1 = its first, whose machine never comes. `stock_nodes` = at most so many
    machines of this model at a time; null = any number.
    """

    boot_seconds: float = Field(0, ge=0, le=86_400)
    fail_orders: Annotated[tuple[Annotated[StrictInt, Field(ge=1, le=1_000_000_000)], ...], Field(max_length=1000)] = ()
    stock_nodes: StrictInt | None = Field(None, ge=0, le=100_000)


class NodeTemplate(Incoming):
    """One node as the provider makes it; its devices belong to the policy's flavor."""

    provider: Literal["simulated"] = "simulated"
    model: Text = Field(description="a model of the accelerator catalogue")
    vendor: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,32}$")] | None = None
    devices: StrictInt = Field(ge=1, le=64)
    cpu_milli: Annotated[CpuMilli, Field(ge=1)]
    memory_mib: Annotated[MemoryMib, Field(ge=1)]
    arch: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,32}$")] = "x86_64"
    region: Text | None = None
    zone: Text | None = None
    labels: Labels = Field(default_factory=dict)
    simulated: SimulatedPlan = SimulatedPlan()

    @model_validator(mode="after")
    def _known_model(self) -> "NodeTemplate":
        find_catalogue_entry(self.model, self.vendor)
        return self


class ScalingRules(Incoming):
    """When a pool grows and shrinks, and by how much at a time.

    Load is what is held and what waits over what takes work and is on its way. Growth is at once from
    `emergency_ratio`, ahead of a forecast from `planned_ratio`. It shrinks when the load stayed below `scale_in_ratio`
    for `safety_window_seconds`, and only so far that it stays `hysteresis_ratio` below `planned_ratio`.
    """

    min_nodes: Nodes = 0
    max_nodes: Nodes = 10
    unit_nodes: Annotated[Nodes, Field(ge=1)] = 1
    max_step_nodes: Annotated[Nodes, Field(ge=1)] = 10
    emergency_ratio: Ratio = 0.8
    planned_ratio: Ratio = 0.65
    scale_in_ratio: Ratio = 0.45
    hysteresis_ratio: Ratio = 0.05
    cool_down_seconds: ShortSeconds = 120
    safety_window_seconds: ShortSeconds = 600
    min_node_life_seconds: ShortSeconds = 600
    registration_seconds: Annotated[ShortSeconds, Field(ge=1)] = 900
    drain_seconds: ShortSeconds = 3600
    drain_busy_nodes: bool = Field(False, description="whether nodes with work are drained too; else only idle ones")

    @model_validator(mode="after")
    def _in_order(self) -> "ScalingRules":
        if self.min_nodes > self.max_nodes:
            raise ValueError(f"min_nodes ({self.min_nodes}) is more than max_nodes ({self.max_nodes})")
        if self.unit_nodes > self.max_step_nodes:
            raise ValueError(f"unit_nodes ({self.unit_nodes}) is more than max_step_nodes ({self.max_step_nodes})")
        if not self.scale_in_ratio + self.hysteresis_ratio <= self.planned_ratio <= self.emergency_ratio:
            raise ValueError("expected scale_in_ratio + hysteresis_ratio <= planned_ratio <= emergency_ratio")
        return self


class ScalingPolicySpec(Incoming):
    """How one flavor of one pool grows and shrinks. Nodes of other origin count as capacity and are never touched."""

    name: Name
    pool_id: PoolId
    flavor: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
    template: NodeTemplate
    rules: ScalingRules = ScalingRules()
    enabled: bool = True

    @model_validator(mode="after")
    def _own_flavor(self) -> "ScalingPolicySpec":
        # An operator's flavor may take any model; a built-in one has the devices of its own model alone.
        own = find_catalogue_entry(self.template.model, self.template.vendor).flavor
        if self.flavor != own and self.flavor in {entry.flavor for entry in load_catalogue()}:
            raise ValueError(f"devices of model {self.template.model} never have the flavor {self.flavor}, but {own}")
        return self


class ScalingPolicyView(Outgoing):
    scaling_policy_id: ScalingPolicyId
    name: str
    pool_id: PoolId
    flavor: str
    template: NodeTemplate
    rules: ScalingRules
    enabled: bool
    created_at: Instant
    generation: int


class ScalingRule(StrEnum):
    """Which rule spoke, in the order in which they are asked; the first that acts ends the pass."""

    MINIMUM = "minimum"
    EMERGENCY = "emergency"
    PLANNED = "planned"
    SCALE_IN = "scale_in"
    HOLD = "hold"


class ScalingAction(StrEnum):
    ORDER_NODES = "order_nodes"
    CANCEL_RELEASE = "cancel_release"
    RELEASE_NODES = "release_nodes"
    NONE = "none"


class ScalingDecisionView(Outgoing):
    """One conclusion with all that it was drawn from: the same inputs give the same decision again.

    Decisions that change nothing are kept when their `code` differs from the one before.
    """

    scaling_decision_id: ScalingDecisionId
    scaling_policy_id: ScalingPolicyId
    policy: str
    pool_id: PoolId
    flavor: str
    decided_at: Instant
    rule: ScalingRule
    action: ScalingAction
    nodes: int = Field(description="ordered, released, or whose release was called off")
    code: str = Field(description="the reason in one word, such as `demand`, `cool_down` or `unknown_signals`")
    reason: str
    load_ratio: float | None = Field(description="null = the pool's capacity was not known")
    rules: ScalingRules
    template: NodeTemplate
    inputs: dict[str, object]


class NodeOrderState(StrEnum):
    """requested → provisioning → joined → releasing → released | failed."""

    REQUESTED = "requested"
    PROVISIONING = "provisioning"
    JOINED = "joined"
    RELEASING = "releasing"
    RELEASED = "released"
    FAILED = "failed"


class NodeOrderView(Outgoing):
    """One node asked of a provider; the row was there before the provider was asked, and its id is the node's tag.

    `register_by` is when an order that has not become a ready node counts as failed; `waits_for` says what is next.
    """

    node_order_id: NodeOrderId
    scaling_policy_id: ScalingPolicyId
    scaling_decision_id: ScalingDecisionId
    pool_id: PoolId
    flavor: str
    number: int
    state: NodeOrderState
    state_since: Instant
    provider: str
    node_id: NodeId | None
    register_by: Instant
    joined_at: Instant | None
    drain_deadline: Instant | None
    attempts: int
    waits_for: str | None
    created_at: Instant
    generation: int


class SignalAggregate(Outgoing):
    """One signal of a pool's devices of one flavor (`node` = of its nodes) over 15 seconds; null = nothing was known.

    `targets` = how many devices or nodes told a value; `unknown` = samples without one.
    """

    window_at: Instant
    pool_id: PoolId
    flavor: str
    name: str
    targets: int
    samples: int
    unknown: int
    mean: float | None
    maximum: float | None
