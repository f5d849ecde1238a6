"""How a service is, in words that anybody may read: which part is unwell, since when, what follows, what to do.

A look never waits longer than two seconds: a PostgreSQL that hangs is told as one that is away.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from millpond_kernel.auth import Authenticator
from millpond_kernel.db import DATABASE_ERRORS, SYSTEM, Database
from millpond_kernel.pausing import end_task
from millpond_kernel.revisions import code_head, may_serve

# A worker that has not told its state for so long counts as absent.
WORKER_SILENCE_SECONDS = 15
LOOK_SECONDS = 2.0
REDIS_SECONDS = 1.0

# Part -> (what follows while it is unwell, what to do). HTTP is ready while the first three are well.
_WORDS: dict[str, tuple[str, str]] = {
    "database": (
        "requests are answered 503 with Retry-After; tasks run on, and nothing acknowledged is lost",
        "start PostgreSQL, or mend the way to it; the service goes on by itself",
    ),
    "schema": ("requests meet tables that are not as expected", "run `millpond migrate`"),
    "keys": (
        "tokens cannot be checked, so that requests are answered 503",
        "see `millpond status quota`: keys are loaded as soon as quota answers",
    ),
    "space": (
        "reads are answered; what would be written is refused with 503, and nothing acknowledged is lost",
        "free space on PostgreSQL's disk; the service goes on by itself",
    ),
    "redis": (
        "requests are answered; events reach other services some seconds later, statements and exports wait",
        "start Redis, or mend the way to it; nothing in it has to be restored",
    ),
    "worker": (
        "",  # each service's own: what stands still
        "see the worker's log: one that ended is started again by itself, one that hangs has to be ended",
    ),
}
_READY = ("database", "schema", "keys")


@dataclass(slots=True)
class Health:
    """Looks at the parts of one service. `standstill` = what follows when its worker does not work."""

    service: str
    database: Database
    redis: "Redis"
    authenticator: Authenticator
    standstill: str
    _seen: dict[str, tuple[bool, datetime]] = field(default_factory=dict, init=False)
    _look: "asyncio.Task[dict[str, dict[str, Any]]] | None" = field(default=None, init=False)
    _looks_at: str = field(default="database", init=False)

    async def tell(self) -> dict[str, Any]:
        """Parts with `ok` and `since`, and when not ok `reason`, `effect`, `remedy`; `ready` for HTTP; `status` is ok,
        degraded (answers, but something is unwell) or down."""
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._look_at_all())
        done, _ = await asyncio.wait([self._look], timeout=LOOK_SECONDS)
        parts = self._look.result() if done else {self._looks_at: _unwell(f"no answer within {LOOK_SECONDS:.0f} s")}
        for name, part in parts.items():
            self._word(name, part)
        ready = all(parts[name]["ok"] for name in _READY if name in parts)
        status = "down" if not ready else "ok" if all(part["ok"] for part in parts.values()) else "degraded"
        return {"service": self.service, "status": status, "ready": ready, "parts": parts}

    async def stop(self) -> None:
        """Ends a look that is under way."""
        await end_task(self._look)

    def _word(self, name: str, part: dict[str, Any]) -> None:
        was_ok, since = self._seen.get(name, (None, datetime.now(UTC)))
        if was_ok is not part["ok"]:
            # A part may know better than this process, which looks when it is asked.
            since = part.get("since") or datetime.now(UTC)
            self._seen[name] = (part["ok"], since)
        part["since"] = min(since, part.get("since") or since).isoformat(timespec="seconds")
        if not part["ok"]:
            effect, remedy = _WORDS[name]
            part.setdefault("effect", effect or self.standstill)
            part.setdefault("remedy", remedy)

    async def _look_at_all(self) -> dict[str, dict[str, Any]]:
        looking = asyncio.create_task(self._look_at_redis())
        try:
            return {**await self._look_at_database(), "redis": await looking}
        finally:
            await end_task(looking)

    async def _look_at_database(self) -> dict[str, dict[str, Any]]:
        """What has to be known first comes first: what stands behind an unwell part is not told."""
        self._looks_at = "database"
        try:
            revision = await self.database.schema_revision()
            if not may_serve(revision):
                return {"database": _well(), "schema": _unwell(f"database at {revision}, code at {code_head()}")}
            worker = await self._look_at_worker()
        except DATABASE_ERRORS as error:
            return {"database": _unwell(f"does not answer: {type(error).__name__}", self.database.away_since)}
        self._looks_at = "keys"
        if not self.authenticator.has_keys:
            await self.authenticator.load_keys()
        keys = _well() if self.authenticator.has_keys else _unwell("no key to verify tokens with: quota did not answer")
        parts = {"database": _well(), "schema": _well(), "keys": keys, "worker": worker}
        if self.database.full_since is not None:
            parts["space"] = _unwell("PostgreSQL found no space to write", self.database.full_since)
        return parts

    async def _look_at_redis(self) -> dict[str, Any]:
        try:
            async with asyncio.timeout(REDIS_SECONDS):
                await self.redis.ping()
        except (RedisError, OSError) as error:
            return _unwell(f"does not answer: {type(error).__name__}")
        return _well()

    async def _look_at_worker(self) -> dict[str, Any]:
        async with self.database.begin(SYSTEM) as unit:
            rows = await unit.fetch(
                "SELECT ready, state, pid, started_at, updated_at,"
                " updated_at > clock_timestamp() - make_interval(secs => $1) AS tells FROM worker_state"
                " ORDER BY tells DESC, ready DESC, updated_at DESC",
                float(WORKER_SILENCE_SECONDS),
            )
        telling = [row for row in rows if row["tells"]]
        if telling:
            best = telling[0]
            state: dict[str, Any] = best["state"]
            part: dict[str, Any] = {"ok": bool(best["ready"]), "workers": len(telling), "state": state}
            if not best["ready"]:
                told: dict[str, Any] = {name: state[name] for name in ("reason", "effect", "remedy") if name in state}
                since = datetime.fromisoformat(state["since"]) if "since" in state else None
                part.update(reason="the worker is behind", since=since)
                part.update(told)
            return part
        if not rows:
            return _unwell("no worker of this service runs, or none has told its state for an hour")
        return _unwell(f"its worker, process {rows[0]['pid']}, has told nothing", rows[0]["updated_at"])


def _well() -> dict[str, Any]:
    return {"ok": True}


def _unwell(reason: str, since: datetime | None = None) -> dict[str, Any]:
    return {"ok": False, "reason": reason, "since": since}
