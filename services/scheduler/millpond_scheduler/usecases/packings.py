"""Proposals of how a pool is packed: asked for, computed in the background, accepted or withdrawn by an operator."""

import asyncio
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from millpond_contracts.bodies.packings import PackingScore, PackingState, PackingView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import PackingId, PoolId
from millpond_kernel.audit import audit
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.observability import log
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.store import jobs, packings, views
from millpond_scheduler.store.packings import Replay
from millpond_scheduler.usecases.mixes import MOST_REQUESTS, RECENT_JOBS

REPLAY_SECONDS = 480.0
"""Longest that the replays may take, on the machine of the background worker."""

STALE_PERMILLE = 250
_BUSY_SECONDS = 900
_MOST_TRIES = 3
_REPLAY_MODULE = "millpond_scheduler.background.replay"


async def request_packing(unit: UnitOfWork, caller: Principal, pool: PoolId) -> PackingView:
    """A new proposal, queued.

    Raises:
        ProblemError: 404 no such pool, 409 another one for it is being computed.
    """
    if await views.find_pool(unit, pool) is None:
        raise ProblemError(ErrorCode.SCHEDULER_POOL_UNKNOWN, f"There is no pool {pool}.")
    made = await packings.insert_packing(unit, pool)
    audit(unit, caller, "packing.request", str(made.packing_id), after=made)
    return made


async def accept_packing(unit: UnitOfWork, caller: Principal, packing: PackingId) -> PackingView:
    """Puts a proposal in force; the leader takes it at its next look, within a minute.

    Raises:
        ProblemError: 404, or 409 when it was not computed. One that was withdrawn may be accepted again.
    """
    before = packings.packing_view(await packings.get_packing(unit, packing, lock=True))
    if before.setting is None:
        raise ProblemError(ErrorCode.PACKING_NOT_READY, f"The proposal is {before.state.value}: it has no setting.")
    if before.state is PackingState.ACCEPTED:
        return before
    after = await packings.accept_packing(unit, packing, before.pool_id, caller.subject)
    audit(unit, caller, "packing.accept", str(packing), before=before, after=after)
    return after


async def withdraw_packing(unit: UnitOfWork, caller: Principal, packing: PackingId) -> PackingView:
    """Gives the pool the default setting again.

    Raises:
        ProblemError: 404, or 409 when the proposal is not in force.
    """
    before = packings.packing_view(await packings.get_packing(unit, packing, lock=True))
    if before.state is not PackingState.ACCEPTED:
        raise ProblemError(ErrorCode.PACKING_NOT_ACCEPTED, f"The proposal is {before.state.value}.")
    after = await packings.withdraw_packing(unit, packing)
    audit(unit, caller, "packing.withdraw", str(packing), before=before, after=after)
    return after


async def tell_packing(unit: UnitOfWork, packing: PackingId) -> PackingView:
    """A proposal, with how much of the demand changed since its replays.

    Raises:
        ProblemError: 404.
    """
    row = await packings.get_packing(unit, packing)
    view = packings.packing_view(row)
    if view.setting is None:
        return view
    asked = await jobs.count_recent_requests(unit, RECENT_JOBS, MOST_REQUESTS, view.pool_id)
    change = measure_change(row["demand"] or {}, _name_demand(asked))
    return view.model_copy(update={"demand_change_permille": change, "is_stale": change >= STALE_PERMILLE})


def measure_change(former: Mapping[str, int], present: Mapping[str, int]) -> int:
    """How much of what comes is other than it was, in thousandths; 1000 when nothing comes any more."""
    before, now = sum(former.values()), sum(present.values())
    if not before or not now:
        return 0 if before == now else 1000
    parts = (abs(former.get(key, 0) * now - present.get(key, 0) * before) for key in former.keys() | present.keys())
    return 1000 * sum(parts) // (2 * before * now)


async def compute_packing(database: Database, packing: PackingId) -> bool:
    """Replays the pool's newest jobs on its own nodes in a process of its own; False when there was nothing to do."""
    async with database.begin(SYSTEM) as unit:
        pool = await packings.begin_packing(unit, packing, _BUSY_SECONDS, _MOST_TRIES)
    if pool is None:
        return False
    async with database.begin(SYSTEM) as unit:
        found = await views.find_pool(unit, pool)
        rows = await views.list_nodes(unit, None)
        asked = await jobs.count_recent_requests(unit, RECENT_JOBS, MOST_REQUESTS, pool)
    given = {
        "pool": None if found is None else found.model_dump(mode="json"),
        "nodes": [row["body"] for row in rows],
        "requests": [[row["asked"], row["tasks"]] for row in asked],
    }
    replay, error = await _replay(given)
    async with database.begin(SYSTEM) as unit:
        await packings.end_packing(unit, packing, replay, _name_demand(asked), error)
    return True


def _name_demand(asked: Sequence[asyncpg.Record]) -> dict[str, int]:
    """How many tasks came with each request, by a short name of it."""
    return {hashlib.sha256(row["asked"].encode()).hexdigest()[:16]: row["tasks"] for row in asked}


async def _replay(given: Mapping[str, Any]) -> tuple[Replay | None, str | None]:
    """What the replays say, or why they say nothing; both None = they were interrupted."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", _REPLAY_MODULE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(json.dumps(given).encode()), REPLAY_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        return None, f"The replays took longer than {REPLAY_SECONDS:.0f} s."
    if process.returncode != 0:
        log.warning("replay_failed", service="scheduler", code=process.returncode)
        return None, "The replays ended with an error; see the log of the background worker."
    told = json.loads(out)
    if "error" in told:
        return None, told["error"]
    scores = tuple(PackingScore.model_validate(score) for score in told["scores"])
    return Replay(scores, told["gain_points"], told["jobs"], told["nodes"]), None
