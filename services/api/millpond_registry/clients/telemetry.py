"""Forwards heartbeat signals to the Redis stream `<prefix>:telemetry`: lossy, never in the way of a heartbeat.

Source: docs/decisions, telemetry does not pass the outbox.
"""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime

from pydantic_core import to_json
from redis.asyncio import Redis
from redis.exceptions import RedisError
from redis.typing import EncodableT, FieldT

from millpond_contracts.ids import NodeId, PoolId
from millpond_contracts.resources import SignalSeries
from millpond_kernel.gathering import Gatherer
from millpond_kernel.observability import log

# One entry stays small, so that trimming by length is trimming by bytes; a sample takes about 25 bytes of JSON.
SAMPLES_PER_ENTRY = 1024
TIMEOUT_SECONDS = 0.5
GATHER_SECONDS = 0.05
_SMALLEST_ENTRY_BYTES = 256
_SMOOTHING = 0.05

_Entry = tuple[dict[FieldT, EncodableT], bytes]


class TelemetryStream:
    """The writing end of the stream, kept to about `max_bytes` by its length and the mean size of late entries."""

    def __init__(self, redis: "Redis", prefix: str, max_bytes: int) -> None:
        self._redis = redis
        self.key = f"{prefix}:telemetry"
        self._max_bytes = max_bytes
        self._mean_bytes = 4096.0
        self._adding = Gatherer("telemetry", self._add, GATHER_SECONDS)

    @property
    def max_entries(self) -> int:
        """How many entries of the present mean size fit."""
        return max(1, int(self._max_bytes / max(self._mean_bytes, _SMALLEST_ENTRY_BYTES)))

    async def forward(
        self, node_id: NodeId, pool_id: PoolId, received_at: datetime, monotonic_ms: int, series: Sequence[SignalSeries]
    ) -> bool:
        """Whether the samples were handed to Redis; when not, they are lost and the heartbeat stands all the same.

        `monotonic_ms` is the agent's clock at the heartbeat: at `received_at` a sample is
        `monotonic_ms - at_monotonic_ms` old. A value that the machine could not tell stays null.
        """
        head: dict[FieldT, EncodableT] = {
            "node": str(node_id),
            "pool": str(pool_id),
            "at": received_at.isoformat(),
            "monotonic_ms": monotonic_ms,
            # Where the version before looks; it then misses samples, which may be, and reads on.
            "signals": "[]",
        }
        entries = [(head, body) for body in _bodies(series)]
        return not entries or await self._adding.ask(entries)

    async def _add(self, heartbeats: Sequence[Sequence[_Entry]]) -> list[bool]:
        """Adds the entries of several heartbeats in one round trip; whether Redis took them, for each."""
        pipeline = self._redis.pipeline(transaction=False)
        for head, body in (entry for entries in heartbeats for entry in entries):
            self._mean_bytes += _SMOOTHING * (len(body) - self._mean_bytes)
            pipeline.xadd(self.key, head | {"series": body}, maxlen=self.max_entries, approximate=True)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await pipeline.execute()
        except (RedisError, OSError, TimeoutError) as error:
            log.debug("telemetry_lost", heartbeats=len(heartbeats), error=type(error).__name__)
            return [False] * len(heartbeats)
        return [True] * len(heartbeats)


def _bodies(series: Sequence[SignalSeries]) -> Iterator[bytes]:
    """JSON of lists of [target, name, instants, values], each list short enough for an entry."""
    rows: list[tuple[str, str, tuple[int, ...], tuple[float | None, ...]]] = []
    samples = 0
    for one in series:
        for start in range(0, len(one.values), SAMPLES_PER_ENTRY):
            part = slice(start, start + SAMPLES_PER_ENTRY)
            instants, values = one.at_monotonic_ms[part], one.values[part]
            if rows and samples + len(values) > SAMPLES_PER_ENTRY:
                yield to_json(rows)
                rows, samples = [], 0
            rows.append((one.target, one.name, instants, values))
            samples += len(values)
    if rows:
        yield to_json(rows)
