"""A list of nodes as one pool of the scheduler, and jobs as its requests."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millpond_contracts.bodies.pools import DeviceSharing
from millpond_contracts.bodies.tenants import Limit, Limits
from millpond_contracts.ids import DeviceId, JobId, NodeId, PoolId, TaskId, TenantId, VirtualPoolId
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_contracts.resources import DeviceKind
from millpond_scheduler.domain.admission import VirtualPoolState
from millpond_scheduler.domain.fragmentation import DemandMix, Packing
from millpond_scheduler.domain.mixes import CHANGE_PERMILLE, find_mixes
from millpond_scheduler.domain.nodes import DeviceProfile, DeviceRecord, NodeRecord, PoolRules
from millpond_scheduler.domain.requests import DeviceDemand, QueuedTask, RequestClass
from millpond_scheduler.domain.scarcity import Setting
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.simulation.traces import TraceJob, TraceNode

_POOL, _TENANT, _VIRTUAL_POOL = PoolId(int=1), TenantId(int=1), VirtualPoolId(int=1)
_MOST = Limit(guaranteed=0, hard=10**9)  # the largest amount there is
_PRIORITY = 50
_TIE_SHIFT = 65  # a snapshot orders nodes by the upper 63 bits of their ids


@dataclass(frozen=True, slots=True)
class Pool:
    """All nodes in one pool, empty, with one tenant whose limits bind nothing; devices may be shared by anyone.

    `names` and `slots` say what the ids stand for: a node's name, a device's index on its node.
    """

    snapshot: Snapshot
    virtual_pools: dict[VirtualPoolId, VirtualPoolState]
    names: dict[NodeId, str]
    slots: dict[DeviceId, int]
    device_milli: int


def build_pool(nodes: Sequence[TraceNode]) -> Pool:
    """The pool of these nodes; of nodes that rank equal the scheduler takes the earlier in this order."""
    snapshot = Snapshot({_POOL: PoolRules(DeviceSharing.ANY, allow_shared_users=True)})
    names: dict[NodeId, str] = {}
    slots: dict[DeviceId, int] = {}
    for number, node in enumerate(nodes, start=1):
        profile = DeviceProfile(DeviceKind.GPU, flavor_of(node.model))
        node_id = NodeId(int=number << _TIE_SHIFT)
        devices = tuple(DeviceRecord(DeviceId(int=(number << 8) + slot), profile) for slot in range(node.devices))
        snapshot.upsert_node(NodeRecord(node_id, _POOL, node.cpu_milli, node.memory_mib, devices, name=node.name))
        names[node_id] = node.name
        slots |= {device.id: slot for slot, device in enumerate(devices)}
    limits = Limits(cpu=_MOST, memory=_MOST, devices=dict.fromkeys({flavor_of(node.model) for node in nodes}, _MOST))
    state = VirtualPoolState(_VIRTUAL_POOL, _TENANT, _POOL, limits)
    milli = WHOLE_DEVICE_MILLI * sum(node.devices for node in nodes)
    return Pool(snapshot, {state.id: state}, names, slots, milli)


def flavor_of(model: str) -> str:
    """The flavor that stands for a model: its name in the letters that a flavor may have."""
    return re.sub(r"[^a-z0-9._-]", "-", model.lower())[:63]


def request_of(job: TraceJob) -> RequestClass:
    """What a task of the job asks for."""
    demand = None
    if job.devices:
        flavors = frozenset(map(flavor_of, job.models))
        demand = DeviceDemand(job.devices, job.milli, None, DeviceKind.GPU, flavors)
    return RequestClass(_TENANT, _POOL, job.cpu_milli, job.memory_mib, demand)


def queue_task(number: int, request: RequestClass, queued_at_us: int) -> QueuedTask:
    """The task of the arrival with this number, from 0 on; it waits since `queued_at_us`."""
    return QueuedTask(TaskId(int=number + 1), JobId(int=number + 1), _VIRTUAL_POOL, request, _PRIORITY, queued_at_us)


def learn_mix(snapshot: Snapshot, counts: Mapping[RequestClass, int], setting: Setting) -> None:
    """Take what came as what usually comes, with its prices, where it has changed enough."""
    mix = find_mix(snapshot, counts)
    if mix.measure_change(snapshot.packing_of(_POOL).mix) >= CHANGE_PERMILLE:
        take_setting(snapshot, mix, setting)


def find_mix(snapshot: Snapshot, counts: Mapping[RequestClass, int]) -> DemandMix:
    """What usually comes to the pool where so much came of each request; empty where nothing could be taken."""
    return find_mixes(snapshot, counts).get(_POOL, DemandMix())


def find_packing(snapshot: Snapshot, mix: DemandMix, setting: Setting) -> Packing:
    """What a setting comes to in the pool."""
    return setting.pack(snapshot.count_sizes(_POOL), mix)


def take_setting(snapshot: Snapshot, mix: DemandMix, setting: Setting) -> None:
    """Pack the pool so from now on."""
    snapshot.set_packing(_POOL, find_packing(snapshot, mix, setting))
