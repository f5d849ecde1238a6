"""Which rows changed since when: by it everybody who remembers something of rows judges only those anew."""

import numpy as np

from millpond_scheduler.domain.columns import BoolArray, IntArray, NodeColumns

# So many of the last changes are listed row by row; the stamps tell of older ones.
_LOG_ROWS = 8192


class RowChanges:
    """The changes of the rows of some columns; `tick` rises with every one."""

    def __init__(self, columns: NodeColumns) -> None:
        self.tick = 0
        self._columns = columns
        self._log: IntArray = np.zeros(_LOG_ROWS, dtype=np.int64)
        self._since = 0

    def note(self, row: int) -> None:
        """A row changed."""
        place = self.tick - self._since
        if place == _LOG_ROWS:
            kept = _LOG_ROWS // 2
            self._log[:kept] = self._log[-kept:]
            self._since, place = self.tick - kept, kept
        self._log[place] = row
        self.tick += 1
        self._columns.stamp[row] = self.tick

    def note_together(self, rows: IntArray) -> None:
        """Many rows changed at once, which are not listed one by one."""
        self.tick += 1
        self._columns.stamp[rows] = self.tick
        self._since = self.tick

    def list_changes(self, since: int) -> IntArray | None:
        """The row of each change after a tick, in order, so that a row may stand there twice; None = too long ago."""
        return None if since < self._since else self._log[since - self._since : self.tick - self._since]

    def list_rows(self, since: int) -> IntArray:
        """The rows that changed after a tick; of a negative tick all rows."""
        rows = self.list_changes(since)
        if since < 0:
            return np.arange(self._columns.rows)
        if rows is None:
            return np.flatnonzero(self._columns.stamp[: self._columns.rows] > since)
        is_last: BoolArray = self._columns.stamp[rows] == np.arange(since + 1, self.tick + 1)
        return rows[is_last]
