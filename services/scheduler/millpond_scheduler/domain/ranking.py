"""Every node's verdict and score for one request, remembered between decisions and batches.

A decision is then a rescore of the rows that changed since the last one of its request, the minimum of each block of
64 rows that they lie in, and the minimum of the blocks. Where the kernel is there it does all of it in one call, else
NumPy; both give the same answers.
"""

from collections.abc import Collection

import numpy as np

from millpond_scheduler.domain import policy
from millpond_scheduler.domain.blocks import BLOCK_BITS, BLOCK_ROWS
from millpond_scheduler.domain.columns import CodeArray, IntArray
from millpond_scheduler.domain.distance import DistanceRules
from millpond_scheduler.domain.fits import ShapeFits
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.scoring import Kernel, Scorer
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.views import RowView


class Ranking:
    """The nodes in the order of one request, or of one that several tenants ask alike (`policy.depends_on_tenant`).

    Attributes:
        seen: the tick of the snapshot at its last refresh; -1 = there was none.
    """

    def __init__(
        self, snapshot: Snapshot, request: RequestClass, distance: DistanceRules, kernel: Kernel | None
    ) -> None:
        self.fits = ShapeFits(snapshot, request, policy.SHAPE_FILTERS, distance)
        self.seen = -1
        self._snapshot = snapshot
        self._scorer = None if kernel is None else Scorer(snapshot, self.fits, kernel)
        self._codes: CodeArray = np.zeros(0, dtype=np.uint8)
        self._scores: IntArray = np.zeros(0, dtype=np.int64)
        self._minima: IntArray = np.zeros(0, dtype=np.int64)
        self._by_kernel = False
        self._first, self._taken = -1, 0
        self._flavors: tuple[str, ...] = ()
        self._layout = -1

    @property
    def flavors(self) -> tuple[str, ...]:
        """The flavors that the hardware of the pool would allow, by name; a new object with every layout."""
        if self._layout != self._snapshot.layout:
            self._take_layout()
        return self._flavors

    @property
    def codes(self) -> CodeArray:
        """Per row the code of the first filter that it fails, 0 = may take the task; as of the last refresh."""
        return self._codes[: self._snapshot.columns.rows]

    @property
    def scores(self) -> IntArray:
        """Per row its rank, smallest first; BLOCKED where the task may not go; as of the last refresh."""
        return self._scores[: self._snapshot.columns.rows]

    def refresh(self) -> None:
        """Judge and score the rows that changed since the last call."""
        snapshot = self._snapshot
        if self.seen == snapshot.changes.tick:
            return
        if self._layout != snapshot.layout:
            self._take_layout()
        if self._scorer is not None and self._by_kernel:
            self._first, self._taken = self._scorer.refresh(self.seen)
        else:
            self._refresh_by_numpy()
        self.seen = snapshot.changes.tick

    def _take_layout(self) -> None:
        """Takes what changed beside the holdings of nodes."""
        snapshot, scorer, pool = self._snapshot, self._scorer, self.fits.request.pool
        self.fits.extend()
        self._flavors = tuple(name for name in self.fits.flavor_names if snapshot.has_flavor(pool, name))
        by_kernel = scorer is not None and scorer.knows_all
        if len(self._codes) < snapshot.columns.rows or by_kernel is not self._by_kernel:
            self._forget(snapshot.columns.capacity, by_kernel=by_kernel)
        if scorer is not None and by_kernel:
            scorer.prepare()
        self._layout = snapshot.layout

    def _forget(self, capacity: int, *, by_kernel: bool) -> None:
        self.seen, self._by_kernel = -1, by_kernel
        self._codes = np.zeros(capacity, dtype=np.uint8)
        self._scores = np.full(capacity, policy.BLOCKED)
        self._minima = np.full(capacity // BLOCK_ROWS, policy.BLOCKED)
        if self._scorer is not None and by_kernel:
            firsts, ages = np.full(len(self._minima), -1), np.zeros(len(self._minima), dtype=np.int64)
            self._scorer.kept = (self._codes, self._scores, self._minima, firsts, ages)

    def _refresh_by_numpy(self) -> None:
        rows = self._snapshot.changes.list_rows(self.seen)
        view = RowView(self._snapshot, self.fits, slice(0, len(rows)) if self.seen < 0 else rows)
        codes = policy.judge(view)
        self._codes[rows] = codes
        self._scores[rows] = policy.score(view, codes)
        blocks = (rows[::BLOCK_ROWS] if self.seen < 0 else rows) >> BLOCK_BITS
        self._minima[blocks] = self._scores.reshape(-1, BLOCK_ROWS)[blocks].min(axis=1)

    def find_best(self, kept_free: Collection[int] = ()) -> int | None:
        """The first row of those that are not kept free for others, as of the last refresh; None when all fail."""
        if self._by_kernel and not kept_free:
            return None if self._first < 0 else self._first
        scores, minima = self._scores, self._minima
        if kept_free:
            kept = np.fromiter(kept_free, dtype=np.int64, count=len(kept_free))
            scores, minima = scores.copy(), minima.copy()
            scores[kept] = policy.BLOCKED
            minima[kept >> BLOCK_BITS] = scores.reshape(-1, BLOCK_ROWS)[kept >> BLOCK_BITS].min(axis=1)
        best = minima.min(initial=policy.BLOCKED)
        if best == policy.BLOCKED:
            return None
        blocks = np.flatnonzero(minima == best)
        rows = (blocks[:, np.newaxis] * BLOCK_ROWS + np.arange(BLOCK_ROWS)).ravel()
        return policy.lowest(self._snapshot, rows[scores[rows] == best])

    def list_slots(self, row: int) -> list[int]:
        """The device slots that the task takes on a row, as of the last refresh."""
        if self._scorer is None or not self._by_kernel or self._codes[row]:
            return policy.pick_slots(RowView(self._snapshot, self.fits, np.array([row])))
        bits = self._taken if row == self._first else self._scorer.pick(row)
        return [slot for slot in range(bits.bit_length()) if bits >> slot & 1]
