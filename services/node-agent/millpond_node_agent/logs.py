"""Pushes what a task prints to the scheduler: small pieces, at most one a second, resumed where the server's copy ends.

Source: decision 19.
"""

import asyncio
import base64
from collections.abc import Callable

from millpond_contracts.bodies.work import LogChunk
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import AllocationId
from millpond_node_agent.backoff import Backoff
from millpond_node_agent.client import Away, Refused, Superseded
from millpond_node_agent.control_plane import ControlPlane, NotAMember
from millpond_node_agent.observability import log
from millpond_node_agent.pausing import wait_within
from millpond_node_agent.runtimes import protocol
from millpond_node_agent.runtimes.protocol import Runtime

CHUNK_BYTES = 256 * 1024
_EAGER_SECONDS = 0.1  # how soon a short wait looks again, until the first text is out
_MOST_GAPS = 3


class LogPusher:
    """The log of one run on its way out."""

    def __init__(
        self,
        runtime: Runtime,
        plane: ControlPlane,
        allocation_id: AllocationId,
        epoch: Callable[[], int],
        push_seconds: float,
    ) -> None:
        self._runtime = runtime
        self._plane = plane
        self._allocation_id = allocation_id
        self._epoch = epoch
        self._push_seconds = push_seconds
        self._offset = 0
        self._gaps = 0

    async def run(self, ended: asyncio.Event, *, resume: bool) -> None:
        """Push until the run has ended and everything is out, or the scheduler wants no more of it.

        Args:
            ended: set once nothing more will be printed.
            resume: ask first what the server has, as an earlier agent may have pushed.
        """
        try:
            if resume:
                await self._ask_offset()
            await self._push_all(ended)
        except Refused as refused:
            log.warning("log_given_up", allocation_id=str(self._allocation_id), code=refused.code)
        except (protocol.RunNotFound, Superseded, NotAMember):
            return  # it was removed; or this agent is at its end, as its loops find out too

    async def _push_all(self, ended: asyncio.Event) -> None:
        pause = _EAGER_SECONDS
        while True:
            over = ended.is_set()  # before the reading: what is read afterwards is then complete
            chunk = await self._read(self._offset, CHUNK_BYTES)
            last = over and not (await self._read(chunk.next_offset, 1)).data
            if chunk.data or last:
                pause = self._push_seconds
                if await self._push(chunk, ended=last) and last:
                    return
            # The last piece does not wait for the rest of the pause.
            await (asyncio.sleep(pause) if over else wait_within(ended.wait(), pause))

    async def _read(self, offset: int, limit: int) -> protocol.LogChunk:
        return await self._runtime.read_log(str(self._allocation_id), offset, limit)

    async def _push(self, chunk: protocol.LogChunk, *, ended: bool) -> bool:
        """Send one piece; False when the server's copy does not reach its end."""
        try:
            self._offset = await self._send(chunk.offset, chunk.data, ended=ended, cut=chunk.cut)
        except Refused as refused:
            if refused.code != ErrorCode.LOG_OFFSET_GAP or self._gaps >= _MOST_GAPS:
                raise
            self._gaps += 1
            await self._ask_offset()
            return False
        return self._offset >= chunk.next_offset

    async def _ask_offset(self) -> None:
        self._offset = await self._send(0, b"", ended=False, cut=False)

    async def _send(self, offset: int, data: bytes, *, ended: bool, cut: bool) -> int:
        chunk = LogChunk(
            allocation_id=self._allocation_id,
            epoch=self._epoch(),
            offset=offset,
            data_base64=base64.b64encode(data).decode(),
            ended=ended,
            cut=cut,
        )
        backoff = Backoff()
        while True:
            try:
                return (await self._plane.push_log(chunk)).next_offset
            except Away as away:
                await asyncio.sleep(max(backoff.next_seconds(), away.retry_after_seconds))
