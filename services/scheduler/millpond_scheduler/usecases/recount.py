"""Counters compared with the allocations that they count: repaired under lock, and told as an alarm."""

from collections.abc import Sequence
from datetime import datetime

import asyncpg

from millpond_contracts.events.scheduler import UsageDriftFound
from millpond_contracts.ids import NodeId, VirtualPoolId
from millpond_kernel.observability import ALARMS, log
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.store.guards import (
    list_expected_nodes,
    list_expected_usage,
    lock_nodes,
    lock_usage,
    write_node_counters,
    write_usage,
)
from millpond_scheduler.usecases.records import microseconds_of

# The counters of a node: their name, the column as found, and as it should be.
_NODE_COUNTERS = (
    ("cpu_milli", "free_cpu_milli", "cpu"),
    ("memory_mib", "free_memory_mib", "mem"),
    ("device_milli", "free_milli", "milli"),
    ("device_mib", "free_mib", "mib"),
    ("device_slots", "free_slots", "slots"),
)


async def recount(
    unit: UnitOfWork,
    nodes: Sequence[NodeId] | None = None,
    virtual_pools: Sequence[VirtualPoolId] | None = None,
) -> int:
    """Compares counters (None = all) with the sums of live allocations and repairs; returns how many were wrong.

    Counters and allocations change together, so one statement sees them agree: only what differs in the first look is
    locked, looked at again, and repaired.
    """
    wrong_nodes = [NodeId.of(row["node_id"]) for row in await list_expected_nodes(unit, nodes) if _is_wrong(row)]
    wrong_pools = {
        VirtualPoolId.of(row["virtual_pool_id"])
        for row in await list_expected_usage(unit, virtual_pools)
        if row["used"] != row["expected"]
    }
    drifts: list[tuple[str, int, int]] = []
    if wrong_nodes:
        await lock_nodes(unit, wrong_nodes)
        rows = [row for row in await list_expected_nodes(unit, wrong_nodes) if _is_wrong(row)]
        drifts += [drift for row in rows for drift in _node_drifts(row)]
        await write_node_counters(unit, rows)
    if wrong_pools:
        await lock_usage(unit, sorted(wrong_pools))
        rows = [row for row in await list_expected_usage(unit, sorted(wrong_pools)) if row["used"] != row["expected"]]
        drifts += [_usage_drift(row) for row in rows]
        await write_usage(unit, rows)
    if drifts:
        await _tell(unit, drifts)
    return len(drifts)


def _is_wrong(row: asyncpg.Record) -> bool:
    return row["over"] != row["shrunk"] or any(row[wanted] != row[column] for _, column, wanted in _NODE_COUNTERS)


def _node_drifts(row: asyncpg.Record) -> list[tuple[str, int, int]]:
    return [
        (f"node/{NodeId.of(row['node_id'])}/{name}", _total(row[wanted]), _total(row[column]))
        for name, column, wanted in _NODE_COUNTERS
        if row[wanted] != row[column]
    ]


def _usage_drift(row: asyncpg.Record) -> tuple[str, int, int]:
    name = "/".join(part for part in (row["resource"], row["flavor"]) if part)
    return f"usage/{VirtualPoolId.of(row['virtual_pool_id'])}/{name}", row["expected"], row["used"]


async def _tell(unit: UnitOfWork, drifts: Sequence[tuple[str, int, int]]) -> None:
    now: datetime = await unit.fetchval("SELECT clock_timestamp()")
    for counter, expected, found in drifts:
        log.error("usage_drift_found", counter=counter, expected=expected, found=found)
        ALARMS.labels("scheduler", "usage_drift").inc()
        unit.emit(
            UsageDriftFound(counter=counter, expected=expected, found=found, generation=microseconds_of(now)), now
        )


def _total(value: int | list[int]) -> int:
    return value if isinstance(value, int) else sum(value)
