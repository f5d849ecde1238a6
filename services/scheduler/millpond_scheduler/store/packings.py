"""Rows of proposed packings: settings of a pool, with what replays said of them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.packings import PackingScore, PackingSetting, PackingState, PackingView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import PackingId, PoolId
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.scarcity import Scarcity, Setting


@dataclass(frozen=True, slots=True)
class Replay:
    """What replays said: settings with what was allocated under each, best first, the default's among them."""

    scores: tuple[PackingScore, ...]
    gain_points: float
    jobs: int
    nodes: int


def packing_view(row: asyncpg.Record) -> PackingView:
    """The proposal of a row, without what changed since."""
    result = row["result"] or {}
    scores = [PackingScore.model_validate(score) for score in result.get("scores", ())]
    return PackingView(
        packing_id=PackingId.of(row["id"]),
        pool_id=PoolId.of(row["pool_id"]),
        state=PackingState(row["state"]),
        setting=scores[0].setting if scores else None,
        gain_points=result.get("gain_points"),
        scores=scores or None,
        jobs=result.get("jobs"),
        nodes=result.get("nodes"),
        error=row["error"],
        created_at=row["created_at"],
        ready_at=row["ready_at"],
        accepted_at=row["accepted_at"],
        accepted_by=row["accepted_by"],
        generation=row["generation"],
    )


def setting_of(setting: PackingSetting) -> Setting:
    """A setting as the domain takes it."""
    scarcity = Scarcity(setting.core_price, setting.device_price, setting.shadow_permille)
    return Setting(setting.quantum_milli, scarcity)


async def insert_packing(unit: UnitOfWork, pool: PoolId) -> PackingView:
    """A queued proposal.

    Raises:
        ProblemError: 409 another one for the pool is not computed yet.
    """
    row = await unit.fetchrow(
        "INSERT INTO packing (id, pool_id, state, generation) VALUES ($1, $2, 'queued', 1)"
        " ON CONFLICT (pool_id) WHERE state IN ('queued', 'running') DO NOTHING RETURNING *",
        PackingId.new(),
        pool,
    )
    if row is None:
        raise ProblemError(ErrorCode.PACKING_UNDER_WAY, f"A proposal for pool {pool} is being computed.")
    return packing_view(row)


async def get_packing(unit: UnitOfWork, packing: PackingId, *, lock: bool = False) -> asyncpg.Record:
    """The row of a proposal, locked for a change if so wanted.

    Raises:
        ProblemError: 404 `scheduler.packing.not_found`.
    """
    row = await unit.fetchrow(f"SELECT * FROM packing WHERE id = $1{' FOR UPDATE' if lock else ''}", packing)
    if row is None:
        raise ProblemError(ErrorCode.PACKING_NOT_FOUND, f"There is no proposal {packing}.")
    return row


async def list_packings(unit: UnitOfWork, after: UUID | None, limit: int, pool: PoolId | None) -> list[asyncpg.Record]:
    """Proposals by id, the oldest first."""
    return await unit.fetch(
        "SELECT * FROM packing WHERE ($1::uuid IS NULL OR id > $1) AND ($3::uuid IS NULL OR pool_id = $3)"
        " ORDER BY id LIMIT $2",
        after,
        limit,
        pool,
    )


async def list_settings(unit: UnitOfWork) -> dict[PoolId, Setting]:
    """The setting in force of each pool that has another one than the default."""
    rows = await unit.fetch("SELECT * FROM packing WHERE state = 'accepted'")
    views = [packing_view(row) for row in rows]
    return {view.pool_id: setting_of(view.setting) for view in views if view.setting is not None}


async def take_overdue(unit: UnitOfWork, seconds: int) -> list[PackingId]:
    """Proposals that nobody computed within so long, to be handed out again."""
    rows = await unit.fetch(
        "UPDATE packing SET handed_at = clock_timestamp() WHERE state IN ('queued', 'running')"
        " AND handed_at < clock_timestamp() - make_interval(secs => $1) RETURNING id",
        seconds,
    )
    return [PackingId.of(row["id"]) for row in rows]


async def begin_packing(unit: UnitOfWork, packing: PackingId, busy_seconds: int, most_tries: int) -> PoolId | None:
    """Takes a proposal that is to be computed; None when there is nothing to do, or somebody is at it since then.

    One that was begun too often fails: whatever ended its tries would end every other one too.
    """
    row = await unit.fetchrow(
        "UPDATE packing SET tries = tries + 1, begun_at = clock_timestamp(), generation = generation + 1,"
        " state = CASE WHEN tries >= $3 THEN 'failed' ELSE 'running' END,"
        " error = CASE WHEN tries >= $3 THEN 'It could not be computed; see the log of the background worker.' END"
        " WHERE id = $1 AND (state = 'queued' OR state = 'running'"
        "  AND begun_at < clock_timestamp() - make_interval(secs => $2)) RETURNING pool_id, state",
        packing,
        busy_seconds,
        most_tries,
    )
    return None if row is None or row["state"] == "failed" else PoolId.of(row["pool_id"])


async def end_packing(
    unit: UnitOfWork, packing: PackingId, replay: Replay | None, demand: Mapping[str, int], error: str | None = None
) -> None:
    """Writes what the replays said, or why there is nothing to say; `demand` = what was replayed, by `asked`."""
    result = None
    if replay is not None:
        result = {**asdict(replay), "scores": [score.model_dump(mode="json") for score in replay.scores]}
    await unit.execute(
        "UPDATE packing SET state = CASE WHEN $2::jsonb IS NULL THEN 'failed' ELSE 'ready' END, result = $2::jsonb,"
        " demand = $3::jsonb, error = $4, ready_at = clock_timestamp(), generation = generation + 1"
        " WHERE id = $1 AND state = 'running'",
        packing,
        None if result is None else result,
        dict(demand),
        error,
    )


async def accept_packing(unit: UnitOfWork, packing: PackingId, pool: PoolId, by: str) -> PackingView:
    """Puts a proposal in force in place of the pool's former one."""
    await unit.execute(
        "UPDATE packing SET state = 'withdrawn', generation = generation + 1 WHERE pool_id = $1 AND state = 'accepted'",
        pool,
    )
    row = await unit.fetchrow(
        "UPDATE packing SET state = 'accepted', accepted_at = clock_timestamp(), accepted_by = $2,"
        " generation = generation + 1 WHERE id = $1 RETURNING *",
        packing,
        by,
    )
    assert row is not None, "it is locked"
    return packing_view(row)


async def withdraw_packing(unit: UnitOfWork, packing: PackingId) -> PackingView:
    """Puts a proposal out of force; the pool has the default setting again."""
    row = await unit.fetchrow(
        "UPDATE packing SET state = 'withdrawn', generation = generation + 1 WHERE id = $1 RETURNING *", packing
    )
    assert row is not None, "it is locked"
    return packing_view(row)
