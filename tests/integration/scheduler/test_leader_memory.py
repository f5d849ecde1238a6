"""What a leader keeps in memory over a lapsed lease, and when it has to read everything anew."""

import asyncio
from typing import Any

import pytest

from millpond_contracts.bodies.groups import DeviceRequest
from millpond_contracts.bodies.nodes import CordonReason, NodeState, NodeView
from millpond_contracts.ecosystem import Ecosystem
from millpond_contracts.ids import NodeId
from millpond_contracts.resources import DeviceHealth, Topology
from millpond_kernel.db import SYSTEM
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.store.views import list_nodes
from millpond_scheduler.usecases.adopting import NodeReader
from millpond_scheduler.usecases.records import node_record
from tests.integration.scheduler.test_partitions import divided
from tests.integration.scheduler.world import ONE_DEVICE, World, make_device
from tests.unit.scheduler.world import contents

pytestmark = pytest.mark.integration

LEASE_SECONDS = 0.4


async def test_memory_when_the_lease_lapsed_and_nobody_took_it_then_kept_and_right(world: World) -> None:
    await world.add_node()
    share = await world.add_virtual_pool()
    leader = world.leader(lease_seconds=LEASE_SECONDS)
    await leader.step()
    before, lease = leader.shard, leader.lease
    assert before is not None
    assert lease is not None
    await asyncio.sleep(2 * LEASE_SECONDS)
    await world.submit(share)
    assert await leader.step()
    assert leader.lease is not None
    assert leader.lease.epoch == lease.epoch + 1
    assert leader.shard is before
    assert len(before.live) == 1
    await world.assert_counters_are_true()


async def test_memory_when_another_leader_held_the_lease_then_read_anew(world: World) -> None:
    await world.add_node()
    share = await world.add_virtual_pool()
    first, second = (world.leader(lease_seconds=LEASE_SECONDS) for _ in range(2))
    await first.step()
    before = first.shard
    await asyncio.sleep(2 * LEASE_SECONDS)
    await world.submit(share)
    assert await second.step()
    await asyncio.sleep(2 * LEASE_SECONDS)
    await first.step()
    assert first.shard is not before
    assert first.shard is not None
    assert len(first.shard.live) == 1
    await world.assert_counters_are_true()


async def add_nodes_of_many_kinds(world: World) -> None:
    """Devices that are like the one before, and that differ from it in one thing."""
    like = make_device()
    await world.add_node(cpu=64_000, memory=262_144, devices=3)
    await world.add_node(cpu=64_000, memory=262_144)
    await world.change_node(
        list(world.nodes)[1],
        devices=(
            like,
            make_device().model_copy(update={"index": 1, "uuid": "GPU-1"}),
            make_device().model_copy(update={"index": 2, "health": DeviceHealth.UNHEALTHY}),
            make_device().model_copy(update={"index": 3, "ecosystem": Ecosystem(runtime="cuda")}),
            make_device().model_copy(update={"index": 4, "attributes": {"fp16_tflops": 65.0}}),
            make_device(memory_mib=None),
        ),
        topology=Topology(zone="z1", rack="r7"),
        labels={"disk": "fast"},
    )
    await world.add_node(cpu=64_000, memory=262_144)
    await world.change_node(list(world.nodes)[2], devices=(divided(make_device(memory_mib=81_920)),))
    await world.add_node(devices=1, cordon_reasons=(CordonReason.OPERATOR,), schedulable=False)
    await world.add_node(devices=1, state=NodeState.UNREACHABLE, schedulable=False)
    await world.add_node(devices=1, polls=False)


def contents_by_tenant(snapshot: Snapshot) -> dict[NodeId, tuple[object, ...]]:
    """What the columns say, with tenants for their numbers, which are given in the order of their coming."""
    tenants: dict[int, object] = dict(enumerate(snapshot.tenants.values))
    rows: dict[NodeId, tuple[Any, ...]] = dict(contents(snapshot))
    return {
        node: (*row[:4], tenants.get(row[4], row[4]), *row[5:7], [tenants.get(one, one) for one in row[7]], *row[8:])
        for node, row in rows.items()
    }


async def test_memory_when_a_new_leader_loads_it_then_equals_what_the_first_one_built(world: World) -> None:
    await add_nodes_of_many_kinds(world)
    share, other = await world.add_virtual_pool(), await world.add_virtual_pool()
    project = await world.add_project(share.tenant_id)
    first = world.leader()
    for changes in (
        {"devices": ONE_DEVICE, "time_limit": 600},
        {"devices": DeviceRequest(milli=250), "count": 3, "project": project},
        {"devices": DeviceRequest(milli=250, memory_mib=2_000)},
        {"devices": DeviceRequest(count=2), "count": 2, "gang": True, "labels": {"team": "a"}},
        {"devices": DeviceRequest(profile="3g.40gb")},
        {"count": 5},
    ):
        await world.submit(share, **changes)
        await world.submit(other, cpu=500)
        while await first.step():
            pass
    built = first.shard
    assert built is not None
    first.forget()
    await first.step()
    loaded = first.shard
    assert loaded is not None
    assert loaded is not built
    assert len(loaded.live) == 19
    assert loaded.live == built.live
    assert [each.holding.kin for _, each in sorted(loaded.live.items())] == [
        each.holding.kin for _, each in sorted(built.live.items())
    ]
    assert (loaded.holders, loaded.layouts, loaded.devices) == (built.holders, built.layouts, built.devices)
    assert (loaded.used, loaded.used_by) == (built.used, built.used_by)
    assert contents_by_tenant(loaded.snapshot) == contents_by_tenant(built.snapshot)
    assert loaded.snapshot.sums.free == built.snapshot.sums.free


async def test_nodes_when_read_by_kinds_of_devices_then_as_their_model_says(world: World) -> None:
    await add_nodes_of_many_kinds(world)
    async with world.database.begin(SYSTEM) as unit:
        rows = await list_nodes(unit, None)
    reader = NodeReader()
    for row in rows:
        node = NodeView.model_validate_json(row["body"])
        record, names = reader.read(row)
        assert record == node_record(node, silent=row["silent"], quarantined=row["quarantined"])
        assert list(names) == [device.device_id for device in node.devices]
        assert list(names.values()) == [
            (device.identity, device.vendor, device.index, device.uuid, device.flavor) for device in node.devices
        ]
