"""What is asked for and of what, where placements are measured: nodes of 8 devices, and a mix of requests."""

from typing import TypeAlias

from millpond_contracts.bodies.groups import DeviceRequest
from millpond_contracts.bodies.nodes import NodeState, NodeView
from millpond_contracts.ids import NodeId, PoolId
from millpond_contracts.resources import Isolation
from millpond_kernel.db import SYSTEM, Database
from millpond_scheduler.store.changes import ChangeKind, note_changes
from tests.integration.scheduler.world import START, make_device

NODES_TOGETHER = 500

# flavor, device memory (MiB); every node has 8 devices
SHAPES = (("a100-80", 81_920), ("t4", 15_360), ("v100-32", 32_768), ("l20", 46_068))
# weight of 100, CPU (milli), memory (MiB), what it asks of devices
DemandClass: TypeAlias = tuple[int, int, int, DeviceRequest | None]
CLASSES: tuple[DemandClass, ...] = (
    (40, 8_000, 32_768, DeviceRequest()),
    (15, 4_000, 16_384, DeviceRequest(milli=500)),
    (10, 2_000, 8_192, DeviceRequest(milli=250)),
    (5, 2_000, 8_192, DeviceRequest(milli=250, memory_mib=4_096)),
    (5, 16_000, 65_536, DeviceRequest(count=2)),
    (3, 32_000, 131_072, DeviceRequest(count=4)),
    (2, 64_000, 196_608, DeviceRequest(count=8)),
    (20, 4_000, 16_384, None),
)
# The classes in a fixed order that spreads them evenly.
ORDER = tuple(one for step in range(100) for one in CLASSES if (step * one[0]) % 100 < one[0])
# Of which hundreds of thousands fit.
SMALL: tuple[DemandClass, ...] = ((1, 100, 64, None), (1, 100, 64, DeviceRequest(milli=50)))


async def add_nodes(database: Database, pool: PoolId, count: int) -> None:
    """Views, counters and leases as the consumer and the first poll write them, many in one statement."""
    nodes = [_make_node(pool, index) for index in range(count)]
    for start in range(0, count, NODES_TOGETHER):
        some = nodes[start : start + NODES_TOGETHER]
        async with database.begin(SYSTEM) as unit:
            await unit.execute(
                "INSERT INTO node_view (node_id, pool_id, body, removed, generation)"
                " SELECT n, $2, b::jsonb, false, 1 FROM unnest($1::uuid[], $3::text[]) AS x(n, b)",
                [node.node_id for node in some],
                pool,
                [node.model_dump_json() for node in some],
            )
            await unit.execute(
                "INSERT INTO node_guard (node_id, pool_id, open, incarnation, layout, total_cpu_milli,"
                " total_memory_mib, device_count, device_ids, total_mib, free_cpu_milli, free_memory_mib, free_milli,"
                " free_mib) SELECT n, $2, true, 1, 1, c, m, cardinality(d::text[]), d::text[], b::int[], c, m,"
                " array_fill(1000, ARRAY[cardinality(d::text[])]), b::int[]"
                " FROM unnest($1::uuid[], $3::bigint[], $4::bigint[], $5::text[], $6::text[]) AS x(n, c, m, d, b)",
                [node.node_id for node in some],
                pool,
                [node.cpu_milli for node in some],
                [node.memory_mib for node in some],
                [f"{{{','.join(str(device.device_id) for device in node.devices)}}}" for node in some],
                [f"{{{','.join(str(device.memory_mib) for device in node.devices)}}}" for node in some],
            )
            await unit.execute(
                "INSERT INTO node_lease (node_id, incarnation, renewed_at, leased_until, boot_id, exchange_at,"
                " exchange_monotonic_ms)"
                " SELECT unnest($1::uuid[]), 1, now(), now() + interval '1 day', 'boot-1', now(), 1",
                [node.node_id for node in some],
            )
            await note_changes(unit, ChangeKind.NODE, [node.node_id for node in some])
    async with database.begin(SYSTEM) as unit:
        await unit.execute("ANALYZE")


def _make_node(pool: PoolId, index: int) -> NodeView:
    flavor, memory_mib = SHAPES[index % len(SHAPES)]
    return NodeView(
        node_id=NodeId.new(),
        pool_id=pool,
        name=f"node-{index}",
        state=NodeState.READY,
        state_since=START,
        schedulable=True,
        incarnation=1,
        boot_id="boot-1",
        arch="x86_64",
        cpu_milli=128_000,
        memory_mib=1_048_576,
        devices=tuple(make_device(flavor, memory_mib) for _ in range(8)),
        runtimes=("process",),
        isolation=Isolation.USER,
        created_at=START,
        generation=1,
    )
