"""Forwards heartbeat signals to the Redis stream `<prefix>:telemetry`: lossy, never in the way of a heartbeat.

Source: docs/decisions, telemetry does not pass the outbox.
"""

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime

from redis.asyncio import Redis
from redis.exceptions import RedisError

from millpond_contracts.ids import NodeId, PoolId
from millpond_contracts.resources import Signal
from millpond_kernel.observability import log

# One entry stays small, so that trimming by length is trimming by bytes; a signal takes about 100 bytes of JSON.
SIGNALS_PER_ENTRY = 256
TIMEOUT_SECONDS = 0.5
_SMALLEST_ENTRY_BYTES = 256
_SMOOTHING = 0.05


class TelemetryStream:
    """The writing end of the stream, kept to about `max_bytes` by its length and the mean size of late entries."""

    def __init__(self, redis: "Redis", prefix: str, max_bytes: int) -> None:
        self._redis = redis
        self.key = f"{prefix}:telemetry"
        self._max_bytes = max_bytes
        self._mean_bytes = 4096.0

    @property
    def max_entries(self) -> int:
        """How many entries of the present mean size fit."""
        return max(1, int(self._max_bytes / max(self._mean_bytes, _SMALLEST_ENTRY_BYTES)))

    async def forward(
        self, node_id: NodeId, pool_id: PoolId, received_at: datetime, monotonic_ms: int, signals: Sequence[Signal]
    ) -> bool:
        """Whether the signals were handed to Redis; when not, they are lost and the heartbeat stands all the same.

        `monotonic_ms` is the agent's clock at the heartbeat: at `received_at` a sample is
        `monotonic_ms - at_monotonic_ms` old. A value that the machine could not tell stays null.
        """
        if not signals:
            return True
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._add(node_id, pool_id, received_at, monotonic_ms, signals)
        except (RedisError, OSError, TimeoutError) as error:
            log.debug("telemetry_lost", node=str(node_id), error=type(error).__name__)
            return False
        return True

    async def _add(
        self, node_id: NodeId, pool_id: PoolId, received_at: datetime, monotonic_ms: int, signals: Sequence[Signal]
    ) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for start in range(0, len(signals), SIGNALS_PER_ENTRY):
            chunk = signals[start : start + SIGNALS_PER_ENTRY]
            body = json.dumps([[s.target, s.name, s.at_monotonic_ms, s.value] for s in chunk], separators=(",", ":"))
            self._mean_bytes += _SMOOTHING * (len(body) - self._mean_bytes)
            pipeline.xadd(
                self.key,
                {
                    "node": str(node_id),
                    "pool": str(pool_id),
                    "at": received_at.isoformat(),
                    "monotonic_ms": monotonic_ms,
                    "signals": body,
                },
                maxlen=self.max_entries,
                approximate=True,
            )
        await pipeline.execute()
