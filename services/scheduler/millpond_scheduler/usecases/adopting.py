"""Nodes and live allocations as the leader remembers them, from their rows: by the hundred thousand when it takes over.

Most of a row is what other rows say too, and is read once: a kind of device, an id, the shares of a device.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import asyncpg

from millpond_contracts.bodies.allocations import AllocationState
from millpond_contracts.bodies.nodes import DeviceView, NodeView
from millpond_contracts.ids import DeviceId, JobId, NodeId, ProjectId, TaskId, TenantId, VirtualPoolId
from millpond_contracts.partitions import mask_of
from millpond_scheduler.domain.nodes import DeviceProfile, DeviceRecord, NodeRecord
from millpond_scheduler.domain.plans import DevicePick, Holding
from millpond_scheduler.domain.requests import Kin
from millpond_scheduler.domain.running import Running
from millpond_scheduler.usecases.records import (
    USABLE_HEALTH,
    device_profile,
    longest_us,
    microseconds_of,
    node_record,
    read_labels,
)
from millpond_scheduler.usecases.shard import DeviceName

Key = TypeVar("Key")
Value = TypeVar("Value")

# What is each device's own; in all else those of one kind are alike.
_OWN = ("device_id", "identity", "index", "uuid", "slot")
# So many kinds of a flavor are looked through; they differ by versions, measurements and health.
_MOST_KINDS = 16


class _Kind(NamedTuple):
    """What is written of devices that are alike, and what it says."""

    written: dict[str, Any]
    profile: DeviceProfile
    usable: bool
    vendor: str
    flavor: str


class NodeReader:
    """Reads nodes as the views keep them."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[_Kind]] = {}

    def read(self, row: asyncpg.Record) -> tuple[NodeRecord, dict[DeviceId, DeviceName]]:
        """The node of a row, and how its devices are told to others."""
        body = json.loads(row["body"])
        devices = [self._read_device(written) for written in body.pop("devices", ())]
        records = tuple(record for record, _ in devices)
        node = node_record(NodeView.model_validate(body), records, silent=row["silent"], quarantined=row["quarantined"])
        return node, {record.id: name for record, name in devices}

    def _read_device(self, written: dict[str, Any]) -> tuple[DeviceRecord, DeviceName]:
        own = {name: written.pop(name) for name in _OWN if name in written}
        kind = self._find_kind(written, own)
        name = DeviceName(own["identity"], kind.vendor, own["index"], own.get("uuid"), kind.flavor)
        return DeviceRecord(DeviceId.parse(own["device_id"]), kind.profile, kind.usable), name

    def _find_kind(self, written: dict[str, Any], own: dict[str, Any]) -> _Kind:
        kinds = self._kinds.setdefault(written["flavor"], [])
        for kind in kinds:
            if kind.written == written:
                return kind
        view = DeviceView.model_validate(written | own)
        found = _Kind(written, device_profile(view), view.health in USABLE_HEALTH, view.vendor, view.flavor)
        kinds.insert(0, found)
        del kinds[_MOST_KINDS:]
        return found


class _Known(dict[Key, Value]):
    """What is made of each key, made at its first sight."""

    def __init__(self, make: Callable[[Key], Value]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Key) -> Value:
        made = self[key] = self._make(key)
        return made


class RunningReader:
    """Reads live allocations."""

    def __init__(self) -> None:
        # By the ids of the rows, which are quicker keys than ours.
        self._tenants = _Known(TenantId.of)
        self._projects = _Known(ProjectId.of)
        self._virtual_pools = _Known(VirtualPoolId.of)
        self._nodes = _Known(NodeId.of)
        self._jobs = _Known(JobId.of)
        self._devices = _Known(DeviceId.parse)
        self._picks = _Known(self._read_picks)

    def read(self, row: asyncpg.Record) -> Running:
        """A live allocation's row as the leader keeps it."""
        grace, started_us = row["stop_grace_seconds"], microseconds_of(row["bound_at"])
        longest = longest_us(row["time_limit_seconds"], grace)
        job, project = self._jobs[row["job_id"]], row["project_id"]
        return Running(
            holding=Holding(
                task=TaskId.of(row["task_id"]),
                node=self._nodes[row["node_id"]],
                tenant=self._tenants[row["tenant_id"]],
                cpu_milli=row["cpu_milli"],
                memory_mib=row["memory_mib"],
                devices=self._picks[row["devices_text"]],
                kin=Kin(job, row["group_name"], read_labels(row["labels_text"])),
            ),
            virtual_pool=self._virtual_pools[row["virtual_pool_id"]],
            flavor=row["flavor"],
            priority=row["priority"],
            started_us=started_us,
            ends_us=None if longest is None else started_us + longest,
            gang=job if row["gang"] else None,
            is_stopping=row["state"] == AllocationState.RELEASING,
            project=None if project is None else self._projects[project],
            stop_grace_seconds=grace,
        )

    def _read_picks(self, text: str) -> tuple[DevicePick, ...]:
        return tuple(
            DevicePick(
                self._devices[share["device_id"]], share["milli"], share["memory_mib"] or 0, *_read_partition(share)
            )
            for share in json.loads(text)
        )


def _read_partition(share: dict[str, Any]) -> tuple[str | None, int]:
    """The profile and the mask of a share; of one from before there were partitions, none."""
    partition = share.get("partition")
    return (None, 0) if partition is None else (partition["profile"], mask_of(partition["start"], partition["slices"]))
