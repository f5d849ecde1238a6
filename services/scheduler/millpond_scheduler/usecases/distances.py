"""How near the devices that a job holds are to its needs, for people."""

import json
from dataclasses import asdict
from typing import Any

from millpond_contracts.bodies.distances import DistancePartView, DistanceView
from millpond_contracts.bodies.nodes import NodeView
from millpond_contracts.bodies.verdicts import PlacedView
from millpond_contracts.ids import DeviceId, JobId, PoolId
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.distance import Distance, DistanceRules, measure_distance, wishes_of
from millpond_scheduler.domain.nodes import DeviceProfile
from millpond_scheduler.store import allocations, jobs, views
from millpond_scheduler.store.allocations import AllocationRecord
from millpond_scheduler.usecases.records import node_record, request_class

_LOOKED_AT = 1000


def distance_view(distance: Distance) -> DistanceView:
    """A distance as people are told of it."""
    parts = [DistancePartView.model_validate(asdict(part)) for part in distance.parts]
    return DistanceView(permille=distance.permille, step=distance.step, parts=parts)


async def list_placed(unit: UnitOfWork, job: JobId, rules: DistanceRules) -> list[PlacedView]:
    """What the job's tasks hold now, by group and flavor, each with the distance of the first of its devices.

    The caller has made sure that whoever asks may see the job.
    """
    held = [each for each in await allocations.list_live_of_job(unit, job, _LOOKED_AT) if each.devices]
    if not held:
        return []
    firsts: dict[tuple[str, str], AllocationRecord] = {}
    counts: dict[tuple[str, str], int] = {}
    for each in held:
        key = each.group, each.devices[0].flavor
        firsts.setdefault(key, each)
        counts[key] = counts.get(key, 0) + 1
    profiles = await _read_profiles(unit, list(firsts.values()))
    (spec,) = await jobs.list_specs(unit, [job])
    groups: dict[str, dict[str, Any]] = {group["name"]: group for group in json.loads(spec["groups"])}
    placed = []
    for (group, flavor), first in firsts.items():
        profile = profiles.get(first.devices[0].device_id)
        if profile is None:
            continue  # the device left its node; what is held is told by the allocation
        request = request_class(first.tenant, PoolId.of(spec["pool_id"]), groups[group])
        distance = measure_distance(rules, wishes_of(rules, request), profile)
        placed.append(
            PlacedView(group=group, tasks=counts[group, flavor], flavor=flavor, distance=distance_view(distance))
        )
    return placed


async def _read_profiles(unit: UnitOfWork, held: list[AllocationRecord]) -> dict[DeviceId, DeviceProfile]:
    rows = await views.list_nodes(unit, list({each.node for each in held}))
    nodes = [node_record(NodeView.model_validate_json(row["body"]), silent=row["silent"]) for row in rows]
    return {device.id: device.profile for node in nodes for device in node.devices}
