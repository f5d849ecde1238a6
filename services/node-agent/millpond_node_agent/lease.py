"""The node's right to run tasks: it ends a fixed time after the *sending* of the last poll that was answered.

The fence, a little earlier, is when tasks are stopped here, so that they are gone before the scheduler gives their
devices to others. The launchers know the fence and obey it without the agent; the agent makes sure of it.
Source: decision 14 (15 s before the end; a fifth of shorter leases).
"""

import asyncio

from millpond_node_agent.observability import log
from millpond_node_agent.runtimes.boottime import monotonic_ms
from millpond_node_agent.runtimes.protocol import Runtime

_MARGIN_SECONDS = 15.0
_MARGIN_SHARE = 0.2
_KILL_SHARE = 0.5  # of the margin: the other half is for killing
_LONGEST_LOOK_SECONDS = 1.0


class Lease:
    """The lease as renewed by polls; nothing is known before the first answer."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._fence_ms: int | None = None
        self._kill_ms = 0
        self._fenced = False
        self._renewed = asyncio.Condition()

    @property
    def is_valid(self) -> bool:
        """Whether tasks may run now."""
        return self._fence_ms is not None and monotonic_ms() < self._fence_ms

    async def renew(self, sent_ms: int, lease_seconds: float) -> None:
        """The poll sent at `sent_ms` was answered with a lease of this length."""
        margin_ms = int(min(_MARGIN_SECONDS, _MARGIN_SHARE * lease_seconds) * 1000)
        end_ms = sent_ms + int(lease_seconds * 1000)
        self._fence_ms, self._kill_ms = end_ms - margin_ms, end_ms - int(margin_ms * _KILL_SHARE)
        await self._runtime.extend_lease(self._fence_ms, self._kill_ms)
        if self._fenced and self.is_valid:
            self._fenced = False
            log.info("lease_renewed_after_fence")
        async with self._renewed:
            self._renewed.notify_all()

    async def wait_until_valid(self) -> None:
        """Returns once tasks may run."""
        async with self._renewed:
            await self._renewed.wait_for(lambda: self.is_valid)

    async def wait_for_fence(self) -> int:
        """Returns the instant by which tasks must be dead, at the fence of a lease that was not renewed.

        Once per lapse: again only after a renewal.
        """
        while self._fenced or self._fence_ms is None or self.is_valid:
            left = _LONGEST_LOOK_SECONDS
            if self._fence_ms is not None and not self._fenced:
                left = min(left, max(0.01, (self._fence_ms - monotonic_ms()) / 1000))
            await asyncio.sleep(left)
        self._fenced = True
        return self._kill_ms
