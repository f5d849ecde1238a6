"""How often the callers of one tenant may ask: a bucket of requests for each tenant in each process (decision 150).

Operators, services and nodes belong to no tenant and are never held back: a heartbeat that waits behind somebody's
script would cost a node its lease.
"""

import math
import time
from collections.abc import Callable

from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import TenantId
from millpond_kernel.observability import REQUESTS_LIMITED, log
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal

# Of more tenants than this, those whose buckets are full again are forgotten.
REMEMBERED_TENANTS = 10_000
# A tenant that is held back is named in the log at most so often.
LOG_EVERY_SECONDS = 60.0


class TenantRates:
    """A bucket for each tenant: `burst` requests at once, `per_second` on average.

    Kept as the instant at which the bucket will be full again (the generic cell rate algorithm, ITU-T I.371).
    """

    def __init__(
        self, service: str, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args:
        per_second: requests that come back each second, more than 0.
        burst: the most that may come at once, at least 1.
        clock: seconds that never go back.
        """
        self._service = service
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
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
