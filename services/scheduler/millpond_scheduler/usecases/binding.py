"""What is written of allocations that a plan makes: rows, and events as text, for thousands a second.

A pydantic model of each costs more than the rest of its commit, so the event is put together here. A test holds it to
the model.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quote

from millpond_contracts.events.scheduler import AllocationBound
from millpond_contracts.ids import AllocationId, DeviceId, PriceVersionId, TypedId
from millpond_contracts.partitions import first_slice
from millpond_kernel.uow import WrittenEvent
from millpond_scheduler.domain.plans import DevicePick, Placement
from millpond_scheduler.store.allocations import NewAllocation
from millpond_scheduler.usecases.shard import DeviceName, WaitingTask


def make_allocation(
    key: AllocationId, placement: Placement, task: WaitingTask, devices: str, price: PriceVersionId | None
) -> NewAllocation:
    """The row of a placement; `devices` as `write_share` wrote them."""
    holding, facts = placement.holding, task.facts
    group = facts.groups[task.group]
    return NewAllocation(
        id=key,
        tenant=holding.tenant,
        project=facts.project,
        virtual_pool=placement.virtual_pool,
        pool=facts.pool,
        node=holding.node,
        job=facts.id,
        job_name=facts.name,
        labels=facts.labels,
        task=holding.task,
        group=task.group,
        place=task.index,
        attempt=task.attempt,
        cpu_milli=holding.cpu_milli,
        memory_mib=holding.memory_mib,
        flavor=placement.flavor,
        devices=devices,
        price_version=price,
        stop_grace_seconds=group.stop_grace_seconds,
        time_limit_seconds=facts.time_limit_seconds,
        priority=task.queued.priority,
        gang=task.queued.gang is not None,
    )


def write_share(key: str, pick: DevicePick, devices: Mapping[DeviceId, DeviceName]) -> str:
    """A share of a device as the agent and everybody else is told of it: a `DeviceShare` as JSON.

    Args:
        key: the device's id as text.
    """
    device = devices[pick.device]
    return (
        f'{{"device_id":"{key}","identity":{quote(device.identity)},"vendor":{quote(device.vendor)},'
        f'"index":{device.place},"uuid":{"null" if device.uuid is None else quote(device.uuid)},'
        f'"flavor":{quote(device.flavor)},"milli":{pick.milli},"memory_mib":{pick.memory_mib or "null"},'
        f'"partition":{_write_partition(pick)}}}'
    )


def _write_partition(pick: DevicePick) -> str:
    if pick.profile is None:
        return "null"
    start, slices = first_slice(pick.slots), pick.slots.bit_count()
    return f'{{"profile":{quote(pick.profile)},"start":{start},"slices":{slices}}}'


def write_bound(new: NewAllocation, epoch: int, bound_at: datetime) -> WrittenEvent:
    """The event of a new allocation: `AllocationBound` with its view, as JSON."""
    key = str(new.id)
    body = (
        f'{{"allocation":{{"allocation_id":"{key}","job_id":"{new.job}","job_name":{quote(new.job_name)},'
        f'"task_id":"{new.task}","group":{quote(new.group)},"index":{new.place},"attempt":{new.attempt},'
        f'"tenant_id":{_text(new.tenant)},"project_id":{_text(new.project)},'
        f'"virtual_pool_id":{_text(new.virtual_pool)},"pool_id":{_text(new.pool)},"node_id":"{new.node}",'
        f'"cpu_milli":{new.cpu_milli},"memory_mib":{new.memory_mib},"devices":{new.devices},"term":"on_demand",'
        f'"price_version_id":{_text(new.price_version)},"labels":{new.labels},"state":"bound","epoch":{epoch},'
        f'"bound_at":{_instant(bound_at)},"active_at":null,"stop_requested_at":null,"waived_from":null,'
        f'"released_at":null,"reason":null,"exit_code":null,"generation":1}}}}'
    )
    return WrittenEvent(AllocationBound.type, key, new.tenant, 1, body, bound_at)


@lru_cache(maxsize=4096, typed=True)
def _text(key: TypedId | None) -> str:
    """What many allocations have in common."""
    return "null" if key is None else f'"{key}"'


@lru_cache(maxsize=8)
def _instant(at: datetime) -> str:
    return f'"{at.isoformat().replace("+00:00", "Z")}"'
