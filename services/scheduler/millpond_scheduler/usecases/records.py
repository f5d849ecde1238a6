"""What rows and contract bodies mean to the domain: nodes, rules, requests, waiting tasks, holdings, prices."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import asyncpg

from millpond_contracts.bodies.groups import DeviceRequest, Preferences, Requirements, Toleration, minimum_value
from millpond_contracts.bodies.nodes import CordonReason, DeviceView, NodeState, NodeView
from millpond_contracts.bodies.places import AntiAffinityScope, LabelOperator
from millpond_contracts.bodies.pools import PoolIsolation, PoolView
from millpond_contracts.ids import PoolId, PriceVersionId, TenantId
from millpond_contracts.partitions import offered_geometry
from millpond_contracts.prices import PublishedPrices, Sku
from millpond_contracts.quantities import microseconds_between
from millpond_contracts.resources import DeviceHealth, Topology, TopologyLevel
from millpond_scheduler.domain.nodes import DeviceProfile, DeviceRecord, NodeProfile, NodeRecord, PoolRules
from millpond_scheduler.domain.requests import Bound, DeviceDemand, LabelMatch, PlacementRules, RequestClass
from millpond_scheduler.domain.topology import Place
from millpond_scheduler.domain.verdicts import Reason

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# `unknown` stops placing and keeps running work; `degraded` is a person's business, not the scheduler's.
# From a task's bind to its process, and from the end of its limit and grace to the word that it has ended.
START_SECONDS, LATE_SECONDS = 30, 5
USABLE_HEALTH = frozenset({DeviceHealth.HEALTHY, DeviceHealth.DEGRADED})


def node_record(
    node: NodeView, devices: tuple[DeviceRecord, ...] | None = None, *, silent: bool, quarantined: bool = False
) -> NodeRecord:
    """A node for the snapshot. One that does not poll takes no work, whatever the registry last heard.

    Nor does one that failed job after job, of which the registry has yet to hear.

    Args:
        devices: its devices where they were read already; None = those of `node`.
    """
    state = NodeState.UNREACHABLE if silent and node.state is NodeState.READY else node.state
    return NodeRecord(
        id=node.node_id,
        pool=node.pool_id,
        cpu_milli=node.cpu_milli,
        memory_mib=node.memory_mib,
        devices=tuple(_device_record(device) for device in node.devices) if devices is None else devices,
        profile=NodeProfile(
            architecture=node.arch,
            taints=node.taints,
            runtimes=frozenset(node.runtimes),
            ecosystem=node.ecosystem,
        ),
        labels=node.labels | {level: value for level, value in node.topology if value is not None},
        place=_place(node.topology),
        name=node.name,
        state=state,
        cordons=frozenset((*node.cordon_reasons, CordonReason.HEALTH) if quarantined else node.cordon_reasons),
        isolation=node.isolation,
        incarnation=node.incarnation,
        version=node.generation,
    )


@lru_cache(maxsize=4096)
def _place(topology: Topology) -> Place:
    return Place(topology.region, topology.zone, topology.rack, topology.interconnect_domain)


def _device_record(device: DeviceView) -> DeviceRecord:
    return DeviceRecord(device.device_id, device_profile(device), device.health in USABLE_HEALTH)


def device_profile(device: DeviceView) -> DeviceProfile:
    """What a request can ask of a device."""
    return DeviceProfile(
        kind=device.kind,
        flavor=device.flavor,
        memory_mib=device.memory_mib,
        attributes=tuple(sorted(device.attributes.items())),
        ecosystem=device.ecosystem,
        geometry=None if device.partition_mode is None else offered_geometry(device.model_key, device.profiles),
    )


def pool_rules(pool: PoolView) -> PoolRules:
    """A pool's rules about tenants side by side."""
    return PoolRules(
        device_sharing=pool.device_sharing,
        allow_shared_users=pool.allow_shared_users,
        dedicated_to=pool.tenant_id if pool.isolation is PoolIsolation.DEDICATED else None,
    )


def request_class(tenant: TenantId, pool: PoolId, group: dict[str, Any]) -> RequestClass:
    """What one task of a group asks for.

    Args:
        group: a group of a stored specification without its command; its image, and whether it is simulated, stand
            beside the resources.
    """
    resources = group["resources"]
    requires = Requirements.model_validate(group["requires"])
    devices = [DeviceRequest.model_validate(device) for device in resources["devices"]]
    tolerations = [Toleration.model_validate(toleration) for toleration in group["tolerations"]]
    return RequestClass(
        tenant=tenant,
        pool=pool,
        cpu_milli=resources["cpu_milli"],
        memory_mib=resources["memory_mib"],
        devices=_device_demand(devices[0], requires) if devices else None,
        needs_image=group["image"] is not None,
        architectures=frozenset(requires.arch),
        ecosystem=requires.ecosystem,
        tolerations=frozenset(item.key if item.value is None else f"{item.key}={item.value}" for item in tolerations),
        labels=tuple(sorted(requires.labels.items())),
        affinity=tuple(
            LabelMatch(each.label, frozenset(each.values), each.operator is LabelOperator.IN)
            for each in requires.affinity
        ),
        levels=_levels_of(requires),
        allow_unknown=requires.allow_unknown,
        simulated=group.get("simulated", False),
        task_kind=Preferences.model_validate(group.get("prefers", {})).task_kind,
    )


def _levels_of(requires: Requirements) -> frozenset[TopologyLevel]:
    """The levels on which it has to be known where a node stands; `node` is known of all."""
    levels = {each.level for each in requires.anti_affinity} | {each.level for each in requires.spread}
    packed = set() if requires.pack is None else {requires.pack}
    return frozenset((levels | packed) - {TopologyLevel.NODE})


def bind_whole_job(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups of a job, each with what any of them says of all tasks of the job: it binds those of every group."""
    found = [
        rule
        for group in groups
        for rule in group["requires"].get("anti_affinity", ())
        if rule["scope"] == AntiAffinityScope.JOB and not rule["labels"]
    ]
    if not found:
        return list(groups)
    bound = []
    for group in groups:
        own = [rule for rule in group["requires"].get("anti_affinity", ()) if rule not in found]
        bound.append({**group, "requires": {**group["requires"], "anti_affinity": own + found}})
    return bound


def placement_rules(group: dict[str, Any]) -> PlacementRules | None:
    """Beside which tasks those of a group may stand, None = any; `group` as in `request_class`."""
    requires = Requirements.model_validate(group["requires"])
    prefers = Preferences.model_validate(group.get("prefers", {}))
    bounds = [
        Bound(
            each.level,
            Reason.ANTI_AFFINITY,
            of_group=each.scope is AntiAffinityScope.GROUP,
            labels=frozenset(each.labels.items()),
        )
        for each in requires.anti_affinity
    ]
    bounds += [
        Bound(each.level, Reason.SPREAD_REACHED, most=each.max_tasks or 1, skew=each.max_skew)
        for each in requires.spread
    ]
    rules = PlacementRules(tuple(bounds), requires.pack, prefers.pack)
    return None if rules == PlacementRules() else rules


@lru_cache(maxsize=4096)
def read_labels(text: str) -> frozenset[tuple[str, str]]:
    """A job's labels from their JSON text."""
    return frozenset(json.loads(text).items())


def _device_demand(device: DeviceRequest, requires: Requirements) -> DeviceDemand:
    return DeviceDemand(
        count=device.count,
        milli=None if device.profile is not None else device.milli,
        memory_mib=device.memory_mib,
        profile=device.profile,
        kind=device.kind,
        flavors=frozenset(device.flavors),
        minima=tuple(sorted((name, minimum_value(text)) for name, text in requires.attributes.items())),
    )


def microseconds_of(instant: datetime) -> int:
    """Microseconds since 1970, the clock of the domain."""
    return microseconds_between(EPOCH, instant)


def longest_us(time_limit_seconds: int | None, stop_grace_seconds: int) -> int | None:
    """The longest that a task holds what it gets, in microseconds: start, limit, grace; None without a time limit."""
    if time_limit_seconds is None:
        return None
    return (START_SECONDS + time_limit_seconds + stop_grace_seconds + LATE_SECONDS) * 1_000_000


def published_prices(row: asyncpg.Record) -> PublishedPrices | None:
    """The prices of a version's row; None while only the version is known, not what it costs."""
    if row["lines"] is None:
        return None
    return PublishedPrices(
        version=PriceVersionId.of(row["id"]),
        tenant=None if row["tenant_id"] is None else TenantId.of(row["tenant_id"]),
        currency=row["currency"],
        valid_from=microseconds_of(row["valid_from"]),
        valid_to=None if row["valid_to"] is None else microseconds_of(row["valid_to"]),
        minimum_seconds=row["minimum_seconds"],
        per_hour={Sku.parse(line["sku"]): Decimal(line["per_hour"]) for line in row["lines"]},
    )
