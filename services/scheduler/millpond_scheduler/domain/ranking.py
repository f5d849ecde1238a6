"""Every node's verdict and score for one request, remembered between decisions and batches.

A decision is then a rescore of the rows that changed since the last one of its request, the minimum of each block of
64 rows that they lie in, and the minimum of the blocks. Where the kernels are there they do all of it, else NumPy; both
give the same answers.
"""

from collections.abc import Collection

import numpy as np

from millpond_scheduler.domain import policy
from millpond_scheduler.domain.blocks import BLOCK_BITS, BLOCK_ROWS
from millpond_scheduler.domain.columns import CodeArray, IntArray
from millpond_scheduler.domain.distance import DistanceRules
from millpond_scheduler.domain.fits import ShapeFits
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.scoring import Kernels, Scorer
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.views import RowView


class Ranking:
    """The nodes in the order of one request, or of one that several tenants ask alike (`policy.depends_on_tenant`).

    Attributes:
        flavors: those that the hardware of the pool would allow, by name.
    """

    def __init__(
        self, snapshot: Snapshot, request: RequestClass, distance: DistanceRules, functions: Kernels | None
    ) -> None:
        self.fits = ShapeFits(snapshot, request, policy.SHAPE_FILTERS, distance)
        self.flavors: tuple[str, ...] = ()
        self._snapshot = snapshot
        self._scorer = None if functions is None else Scorer(snapshot, self.fits, functions)
        self._codes: CodeArray = np.zeros(0, dtype=np.uint8)
        self._scores: IntArray = np.zeros(0, dtype=np.int64)
        self._taken: IntArray = np.zeros(0, dtype=np.int64)
        self._minima: IntArray = np.zeros(0, dtype=np.int64)
        self._firsts: IntArray = np.zeros(0, dtype=np.int64)
        self._by_kernels = False
        self._seen = -1

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
        if self._seen == snapshot.tick:
            return
        self.fits.extend()
        pool = self.fits.request.pool
        self.flavors = tuple(name for name in self.fits.flavor_names if snapshot.has_flavor(pool, name))
        by_kernels = self._scorer is not None and self._scorer.knows_all
        if len(self._codes) < snapshot.columns.rows or by_kernels is not self._by_kernels:
            self._forget(snapshot.columns.capacity, by_kernels=by_kernels)
        rows = snapshot.list_touched(self._seen)
        if self._scorer is not None and by_kernels:
            self._refresh_by_kernels(self._scorer, rows)
        else:
            self._refresh_by_numpy(rows)
        self._seen = snapshot.tick

    def _forget(self, capacity: int, *, by_kernels: bool) -> None:
        self._seen, self._by_kernels = -1, by_kernels
        self._codes = np.zeros(capacity, dtype=np.uint8)
        self._scores = np.full(capacity, policy.BLOCKED)
        self._minima = np.full(capacity // BLOCK_ROWS, policy.BLOCKED)
        if by_kernels:
            self._taken = np.zeros(capacity, dtype=np.int64)
            self._firsts = np.full(len(self._minima), -1)

    def _refresh_by_kernels(self, scorer: Scorer, rows: IntArray) -> None:
        scorer.refresh(rows, self._codes, self._scores, self._taken)
        if self._seen < 0:
            rows = rows[::BLOCK_ROWS]  # of blocks that are new one row brings all
        scorer.functions.note_rows(rows, self._snapshot.columns.blocks[0], self._scores, self._minima, self._firsts)

    def _refresh_by_numpy(self, rows: IntArray) -> None:
        view = RowView(self._snapshot, self.fits, slice(0, len(rows)) if self._seen < 0 else rows)
        codes = policy.judge(view)
        self._codes[rows] = codes
        self._scores[rows] = policy.score(view, codes)
        blocks = (rows[::BLOCK_ROWS] if self._seen < 0 else rows) >> BLOCK_BITS
        self._minima[blocks] = self._scores.reshape(-1, BLOCK_ROWS)[blocks].min(axis=1)

    def find_best(self, kept_free: Collection[int] = ()) -> int | None:
        """The first row of those that are not kept free for others, as of the last refresh; None when all fail."""
        if self._scorer is not None and self._by_kernels and not kept_free:
            nodes = self._snapshot.columns.blocks[0]
            row = self._scorer.functions.find_first(nodes, self._scores, self._minima, self._firsts)
            return None if row < 0 else row
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
        """The device slots that the task takes on a row."""
        if not self._by_kernels or self._codes[row]:
            return policy.pick_slots(RowView(self._snapshot, self.fits, np.array([row])))
        bits = int(self._taken[row])
        return [slot for slot in range(bits.bit_length()) if bits >> slot & 1]
