"""What the scheduler knows of a node: values in, made from the registry's events and the scheduler's own rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from millpond_contracts.bodies.nodes import CordonReason, NodeState
from millpond_contracts.bodies.pools import DeviceSharing
from millpond_contracts.ecosystem import Ecosystem
from millpond_contracts.ids import DeviceId, NodeId, PoolId, TenantId
from millpond_contracts.partitions import Geometry
from millpond_contracts.quantities import MAX_CPU_MILLI, MAX_MEMORY_MIB
from millpond_contracts.resources import DeviceKind, Isolation, Taint
from millpond_scheduler.domain.topology import Place

PROCESS_RUNTIME = "process"


@dataclass(frozen=True, slots=True)
class NodeSize:
    """Nodes that cost alike: `flavor` of their devices (None = without any, or several), how many, and the rest."""

    flavor: str | None
    devices: int
    cpu_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What a request can ask of a device; equal devices share one profile.

    `attributes` are sorted pairs such as `("bf16_tflops", 312.0)`; an attribute that is not known is left out.
    `memory_mib` is the usable memory, None when the device does not tell. `geometry`: given out in these hardware
    partitions alone; None = whole or in shares.
    """

    kind: DeviceKind
    flavor: str
    memory_mib: int | None = None
    attributes: tuple[tuple[str, float], ...] = ()
    ecosystem: Ecosystem = field(default_factory=Ecosystem)
    geometry: Geometry | None = None
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        values = (self.kind, self.flavor, self.memory_mib, self.attributes, self.ecosystem, self.geometry)
        object.__setattr__(self, "_hash", hash(values))  # profiles are keys on the loading path

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """What a request can ask of a node besides its devices; equal nodes share one profile.

    `runtimes` are those of the agent: `process`, and a container runtime where there is one.
    """

    architecture: str | None = None
    taints: tuple[Taint, ...] = ()
    runtimes: frozenset[str] = frozenset({PROCESS_RUNTIME})
    ecosystem: Ecosystem = field(default_factory=Ecosystem)
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.architecture, self.taints, self.runtimes, self.ecosystem)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class NodeShape:
    """The hardware of a node as far as a request can tell: feasibility is asked once per shape, not once per node."""

    node: NodeProfile
    devices: tuple[DeviceProfile, ...]


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """One device; `usable` is False while its health forbids new work."""

    id: DeviceId
    profile: DeviceProfile
    usable: bool = True


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node with what jobs may get of it at most; what is held of it is said by the allocations.

    Only the state `ready` with no cordon reason takes work.
    `labels` are those that requests ask for, with where it stands among them.
    `incarnation` rises with each agent session, `version` with each change of the row.
    """

    id: NodeId
    pool: PoolId
    cpu_milli: int
    memory_mib: int
    devices: tuple[DeviceRecord, ...] = ()
    profile: NodeProfile = field(default_factory=NodeProfile)
    labels: Mapping[str, str] = field(default_factory=dict)
    place: Place = field(default_factory=Place)
    name: str = ""
    state: NodeState = NodeState.READY
    cordons: frozenset[CordonReason] = frozenset()
    isolation: Isolation = Isolation.USER
    incarnation: int = 0
    version: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.cpu_milli <= MAX_CPU_MILLI:
            raise ValueError(f"node {self.id}: expected cpu_milli in 0..{MAX_CPU_MILLI}, found {self.cpu_milli}")
        if not 0 <= self.memory_mib <= MAX_MEMORY_MIB:
            raise ValueError(f"node {self.id}: expected memory_mib in 0..{MAX_MEMORY_MIB}, found {self.memory_mib}")

    @property
    def size(self) -> NodeSize:
        """What it is among nodes that cost alike."""
        flavors = {device.profile.flavor for device in self.devices}
        flavor = flavors.pop() if len(flavors) == 1 else None
        return NodeSize(flavor, len(self.devices), self.cpu_milli, self.memory_mib)


@dataclass(frozen=True, slots=True)
class PoolRules:
    """A pool's rules about tenants side by side.

    `allow_shared_users`: tasks of several tenants may run on a node whose isolation is `none`.
    `dedicated_to`: the one tenant whose tasks may start there, None = any.
    """

    device_sharing: DeviceSharing = DeviceSharing.SAME_TENANT
    allow_shared_users: bool = False
    dedicated_to: TenantId | None = None
