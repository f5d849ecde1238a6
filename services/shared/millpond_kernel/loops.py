"""Control loops: one runner owns interval, jitter, back-off, lease and metrics; a pass never sleeps.

A pass is `async (now) -> None` or, for a leased loop, `async (now, lease) -> None`; several copies may run everywhere.
"""

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID, uuid4

from millpond_kernel.db import DATABASE_ERRORS, Database
from millpond_kernel.leases import Lease, LeaseLost, acquire_lease, release_lease
from millpond_kernel.observability import LEADER, LOOP_PASSES, LOOP_SECONDS, log
from millpond_kernel.pausing import Stop, sleep_or_stop

MAX_BACKOFF_SECONDS = 10.0

Pass = Callable[[datetime], Awaitable[None]]
LeasedPass = Callable[[datetime, Lease], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Unwell:
    """The first thing that a person must know of a worker; anybody may read it, so it names nobody's things."""

    reason: str
    effect: str
    remedy: str


@dataclass(slots=True)
class Loop:
    """A named control loop. With `lease_seconds` only the holder of the lease `name` runs passes.

    `unwell` says what a person must look at though the passes succeed, or None.
    """

    name: str
    interval_seconds: float
    run_pass: Pass | None = None
    run_leased_pass: LeasedPass | None = None
    lease_seconds: float | None = None
    unwell: Callable[[], Unwell | None] | None = None
    failures: int = field(default=0, init=False)
    last_error: str | None = field(default=None, init=False)
    began_monotonic: float | None = field(default=None, init=False)
    last_pass_monotonic: float | None = field(default=None, init=False)
    ran: bool = field(default=False, init=False)


class LoopRunner:
    """Runs one loop of a service until stopped."""

    def __init__(self, database: Database, loop: Loop) -> None:
        self._database = database
        self._loop = loop
        self._holder: UUID = uuid4()
        self._lease: Lease | None = None
        self._renew_at = 0.0

    async def run(self, stop: Stop) -> None:
        """Passes at the interval with a tenth of jitter; after an error waits longer each time, up to 10 s."""
        loop = self._loop
        while not stop.is_set():
            await self._pass_once()
            wait = loop.interval_seconds * random.uniform(0.95, 1.05)
            if loop.failures:
                wait = min(MAX_BACKOFF_SECONDS, max(wait, 0.1 * 2 ** min(loop.failures, 10)))
            await sleep_or_stop(stop, wait)
        if self._lease is not None:
            try:
                await release_lease(self._database, self._lease)
            except DATABASE_ERRORS:
                log.debug("lease_not_released", lease=self._lease.name)

    async def _pass_once(self) -> None:
        loop, service = self._loop, self._database.service
        loop.began_monotonic = started = time.monotonic()
        try:
            loop.ran = ran = await self._run_pass()
            loop.failures, loop.last_error = 0, None
            outcome = "ok" if ran else "idle"
        except LeaseLost:
            self._lease = None
            outcome = "lease_lost"
        except DATABASE_ERRORS as error:
            outcome = "away"
            self._failed(error)
        except Exception as error:
            outcome = "error"
            self._failed(error)
            log.error("loop_failed", service=service, loop=loop.name, exc_info=error)
        loop.began_monotonic, loop.last_pass_monotonic = None, time.monotonic()
        LOOP_PASSES.labels(service, loop.name, outcome).inc()
        LOOP_SECONDS.labels(service, loop.name).observe(time.monotonic() - started)

    def _failed(self, error: Exception) -> None:
        self._loop.failures += 1
        self._loop.last_error = f"{type(error).__name__}: {error}"[:300]

    async def _run_pass(self) -> bool:
        loop = self._loop
        if loop.lease_seconds is not None and (self._lease is None or time.monotonic() >= self._renew_at):
            # Renewing is a durable write: a third of the lease's life is often enough. One that fails is due again.
            asked = time.monotonic()
            self._lease = await acquire_lease(self._database, loop.name, self._holder, loop.lease_seconds)
            self._renew_at = asked + loop.lease_seconds / 3
            LEADER.labels(self._database.service, loop.name).set(1 if self._lease else 0)
            if self._lease is None:
                return False
        now = await self._database.now()
        if loop.run_leased_pass is not None and self._lease is not None:
            await loop.run_leased_pass(now, self._lease)
        if loop.run_pass is not None:
            await loop.run_pass(now)
        return True
