"""Notices the end of a process at once."""

import asyncio
import os


class ExitWatch:
    """Sets an event the moment a process ends, child or not."""

    def __init__(self, pid: int, event: asyncio.Event) -> None:
        self._event = event
        self.has_ended = False
        try:
            self._descriptor = os.pidfd_open(pid)
        except OSError:
            self._descriptor = -1
            self._end()
        else:
            asyncio.get_running_loop().add_reader(self._descriptor, self._end)

    def close(self) -> None:
        """Stop watching."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _end(self) -> None:
        self.has_ended = True
        self._event.set()
        self.close()
