"""How much the callers of one tenant may ask: a bucket of requests, and so many open streams (decision 150).

Operators, services and nodes belong to no tenant and are never held back: a heartbeat that waits behind somebody's
script would cost a node its lease.
"""

import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import TenantId
from millpond_kernel.observability import REQUESTS_LIMITED, log
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal

# Of more tenants than this, those whose buckets are full again are forgotten.
REMEMBERED_TENANTS = 10_000
# A tenant that is held back is named in the log at most so often.
LOG_EVERY_SECONDS = 60.0
STREAM_RETRY_SECONDS = 10


class TenantRates:
    """A bucket for each tenant, `burst` requests at once and `per_second` on average; and its open streams, counted.

    A bucket is kept as the instant at which it will be full again (the generic cell rate algorithm, ITU-T I.371).
    """

    def __init__(
        self,
        service: str,
        per_second: float,
        burst: int,
        streams: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        per_second: requests that come back each second, more than 0.
        burst: the most that may come at once, at least 1.
        streams: the most that may be open at once, at least 1.
        clock: seconds that never go back.
        """
        self._service = service
        self._per_second = per_second
        self._burst = burst
        self._streams = streams
        self._clock = clock
        self._open = Counter[TenantId]()
        self._full_at: dict[TenantId, float] = {}
        self._told_at: dict[TenantId, float] = {}

    def admit(self, caller: Principal) -> None:
        """Takes one request out of the bucket of the caller's tenant, if it has one.

        Raises:
            ProblemError: 429 with the whole seconds after which one is there again; nothing was begun.
        """
        if caller.tenant_id is None:
            return
        wait_seconds = self.take(caller.tenant_id)
        if wait_seconds > 0:
            REQUESTS_LIMITED.labels(self._service).inc()
            self._tell(caller.tenant_id)
            raise ProblemError(
                ErrorCode.RATE_LIMITED,
                f"This tenant may ask {self._per_second:g} times a second here, and {self._burst} times at once;"
                " try again later.",
                retry_after_seconds=math.ceil(wait_seconds),
            )

    def take(self, tenant: TenantId) -> float:
        """0 when the request may pass, and is counted; else the seconds until one may."""
        now = self._clock()
        full_at = max(self._full_at.get(tenant, now), now) + 1 / self._per_second
        wait_seconds = full_at - now - self._burst / self._per_second
        # The sums of a full bucket differ in their last digits only.
        if wait_seconds > 1e-6:
            return wait_seconds
        if len(self._full_at) >= REMEMBERED_TENANTS:
            self._full_at = {one: until for one, until in self._full_at.items() if until > now}
        self._full_at[tenant] = full_at
        return 0.0

    def streamed(self, caller: Principal, parts: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        """The parts as they come, an open stream of the caller's tenant until they end or nobody reads on.

        Raises:
            ProblemError: 429 while too many are open; nothing was begun.
        """
        tenant = caller.tenant_id
        if tenant is None:
            return parts
        if self._open[tenant] >= self._streams:
            REQUESTS_LIMITED.labels(self._service).inc()
            self._tell(tenant)
            detail = f"{self._streams} watches and followed logs of this tenant are open here; end one of them first."
            raise ProblemError(ErrorCode.RATE_LIMITED, detail, retry_after_seconds=STREAM_RETRY_SECONDS)
        return self._counted(tenant, parts)

    async def _counted(self, tenant: TenantId, parts: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        self._open[tenant] += 1
        try:
            async with aclosing(parts):
                async for part in parts:
                    yield part
        finally:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]

    @property
    def remembered(self) -> int:
        """How many tenants have a bucket in memory."""
        return len(self._full_at)

    def _tell(self, tenant: TenantId) -> None:
        now = self._clock()
        if now - self._told_at.get(tenant, -math.inf) < LOG_EVERY_SECONDS:
            return
        if len(self._told_at) >= REMEMBERED_TENANTS:
            self._told_at.clear()
        self._told_at[tenant] = now
        log.warning("tenant_held_back", service=self._service, tenant_id=str(tenant), per_second=self._per_second)
