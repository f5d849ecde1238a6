"""SQL of the pools' demand as it was told last."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import asyncpg

from millpond_contracts.bodies.scaling import DemandShape, PoolDemand
from millpond_contracts.ids import PoolId
from millpond_kernel.uow import UnitOfWork


def demand_view(row: asyncpg.Record) -> PoolDemand:
    """The demand of a row."""
    return PoolDemand(
        pool_id=PoolId.of(row["pool_id"]),
        as_of=row["as_of"],
        shapes=tuple(DemandShape.model_validate(shape) for shape in row["shapes"]),
        generation=row["generation"],
    )


async def list_told(unit: UnitOfWork) -> dict[PoolId, tuple[DemandShape, ...]]:
    """What was told last of every pool that had any."""
    rows = await unit.fetch("SELECT * FROM demand")
    return {PoolId.of(row["pool_id"]): demand_view(row).shapes for row in rows}


async def write_demand(
    unit: UnitOfWork, demand: Mapping[PoolId, Sequence[DemandShape]], now: datetime
) -> list[PoolDemand]:
    """Keeps the demand of pools, each with its next generation."""
    told = []
    for pool_id, shapes in demand.items():
        bodies: list[dict[str, Any]] = [shape.model_dump(mode="json") for shape in shapes]
        row = await unit.fetchrow(
            "INSERT INTO demand AS d (pool_id, shapes, as_of, generation) VALUES ($1, $2, $3, 1)"
            " ON CONFLICT (pool_id) DO UPDATE SET shapes = excluded.shapes, as_of = excluded.as_of,"
            " generation = d.generation + 1 RETURNING *",
            pool_id,
            bodies,
            now,
        )
        assert row is not None, "an upsert returns its row"
        told.append(demand_view(row))
    return told
