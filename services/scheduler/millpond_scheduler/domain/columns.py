"""The nodes as arrays: one column per property, one row per node, grown by doubling so that adding is amortised."""

from collections.abc import Hashable
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
CodeArray: TypeAlias = NDArray[np.uint8]

ABSENT = -1
"""No pool, no flavor, no holder: the value of an index column where there is nothing."""

SEVERAL = -2
"""Holder column: more than one tenant holds something here."""

_NODE_INTS = {
    "pool": ABSENT,
    "cpu_total": 0,
    "cpu_free": 0,
    "memory_total": 0,
    "memory_free": 0,
    "usable_milli_free": 0,
    "shape": 0,
    "size": 0,
    "label_set": 0,
    "place": 0,
    "holder": ABSENT,
    "incarnation": 0,
    "version": 0,
    "tie": 0,
    "tie_rest": 0,
    "stamp": 0,
}
_NODE_BOOLS = ("ready", "cordoned", "unisolated")
_DEVICE_INTS = {
    "device_flavor": ABSENT,
    "device_milli_free": 0,
    "device_memory_total": 0,
    "device_memory_free": 0,
    "device_holder": ABSENT,
    "device_slots": 0,
}
_DEVICE_BOOLS = ("device_usable",)
_WORD = 8  # bytes

# A column's place in its block
NODE_INT_NAMES, NODE_BOOL_NAMES = tuple(_NODE_INTS), _NODE_BOOLS
DEVICE_INT_NAMES, DEVICE_BOOL_NAMES = tuple(_DEVICE_INTS), _DEVICE_BOOLS


class NodeColumns:
    """Columns for `rows` nodes of at most `width` devices: int64 amounts and indexes, booleans for flags.

    Node columns are (capacity,), device columns (capacity, width). Integers only: an int64 wraps silently, so what
    enters is bounded where nodes and requests are made. `stamp` is the tick of a row's last change; `tie`, then
    `tie_rest`, order nodes by age whatever row they lie in; `usable_milli_free` sums the free milli of a node's usable
    devices. A device whose memory is unknown has 0. `device_slots` = the mask of the slices that partitions hold.
    `blocks` are the same columns together: integers and booleans of nodes (capacity, columns), then of devices
    (capacity, columns, width). What is asked most is one row, so its numbers lie side by side.
    """

    blocks: tuple[IntArray, BoolArray, IntArray, BoolArray]

    pool: IntArray
    cpu_total: IntArray
    cpu_free: IntArray
    memory_total: IntArray
    memory_free: IntArray
    usable_milli_free: IntArray
    shape: IntArray
    size: IntArray
    label_set: IntArray
    place: IntArray
    holder: IntArray
    incarnation: IntArray
    version: IntArray
    tie: IntArray
    tie_rest: IntArray
    stamp: IntArray
    ready: BoolArray
    cordoned: BoolArray
    unisolated: BoolArray
    device_flavor: IntArray
    device_milli_free: IntArray
    device_memory_total: IntArray
    device_memory_free: IntArray
    device_holder: IntArray
    device_slots: IntArray
    device_usable: BoolArray

    def __init__(self, capacity: int = 64, width: int = 1) -> None:
        self.rows = 0
        self.capacity = capacity
        self.width = width
        self.blocks = _make_blocks(capacity, width)
        self.blocks[0][:] = np.array(list(_NODE_INTS.values()))
        self.blocks[2][:] = np.array(list(_DEVICE_INTS.values()))[:, np.newaxis]
        self._name_columns()

    def reserve(self, rows: int, width: int) -> None:
        """Make room for so many rows and devices per row; what is there keeps its place."""
        if rows <= self.capacity and width <= self.width:
            return
        capacity = self.capacity
        while capacity < rows:
            capacity *= 2
        larger = NodeColumns(capacity, max(width, self.width))
        for block, former in zip(larger.blocks[:2], self.blocks[:2], strict=True):
            block[: self.capacity] = former
        for block, former in zip(larger.blocks[2:], self.blocks[2:], strict=True):
            block[: self.capacity, :, : self.width] = former
        self.blocks, self.capacity, self.width = larger.blocks, larger.capacity, larger.width
        self._name_columns()

    def _name_columns(self) -> None:
        names = (NODE_INT_NAMES, NODE_BOOL_NAMES, DEVICE_INT_NAMES, DEVICE_BOOL_NAMES)
        for block, each in zip(self.blocks, names, strict=True):
            for place, name in enumerate(each):
                setattr(self, name, block[:, place])

    def clear(self, row: int) -> None:
        """Empty one row, except for its stamp."""
        for name, fill in {**_NODE_INTS, **_DEVICE_INTS}.items():
            if name != "stamp":
                getattr(self, name)[row] = fill
        for name in (*_NODE_BOOLS, *_DEVICE_BOOLS):
            getattr(self, name)[row] = False


Value = TypeVar("Value", bound=Hashable)


def _make_blocks(capacity: int, width: int) -> tuple[IntArray, BoolArray, IntArray, BoolArray]:
    """Views of one piece of memory in which all numbers of a row stand side by side, what is asked most first."""
    parts = (len(_NODE_INTS), 1 + (len(_DEVICE_BOOLS) * width + _WORD - 1) // _WORD, len(_DEVICE_INTS) * width)
    whole: IntArray = np.zeros((capacity, sum(parts)), dtype=np.int64)
    nodes, flags, devices = np.split(whole, np.cumsum(parts)[:-1], axis=1)
    bools = flags.view(np.bool_)
    return (
        nodes,
        bools[:, : len(_NODE_BOOLS)],
        devices.reshape(capacity, len(_DEVICE_INTS), width),
        bools[:, _WORD : _WORD + len(_DEVICE_BOOLS) * width].reshape(capacity, len(_DEVICE_BOOLS), width),
    )


class Interner(Generic[Value]):
    """Small integers for values, given in order of first sight and never taken back."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._indexes: dict[Value, int] = {}

    def index(self, value: Value) -> int:
        """The value's integer, given now if it has none."""
        found = self._indexes.get(value)
        if found is None:
            found = self._indexes[value] = len(self.values)
            self.values.append(value)
        return found

    def find(self, value: Value) -> int:
        """The value's integer, or ABSENT."""
        return self._indexes.get(value, ABSENT)
