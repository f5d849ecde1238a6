"""What waits, by virtual pool in the order of its policy; kept between batches, so that a batch costs what it looks at.

A queue is a sorted list. What left it stays in the list as a dead entry until there are enough of them to sweep; what
came is sorted in when the queue is next read.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Final, TypeAlias

from millpond_contracts.bodies.tenants import QueuePolicy
from millpond_contracts.ids import ProjectId, TaskId, VirtualPoolId
from millpond_scheduler.domain.requests import Gang, QueuedTask

Unit: TypeAlias = tuple[QueuedTask, ...]
"""What is decided together: a task by itself, or all waiting tasks of a gang."""

Key: TypeAlias = tuple[int, int, int]
# The place, then a number that no two entries share.
_Entry: TypeAlias = tuple[int, int, int, int, QueuedTask]

_SERIAL: Final = 3

# Behind everything that says how long it takes at most.
_UNBOUNDED = 1 << 62
# A queue is swept when it has more dead entries than this, and than an eighth of the living.
_FEW = 64


def key_of(policy: QueuePolicy) -> Callable[[QueuedTask], Key]:
    """The place of a task in the queue of its virtual pool; with fair share, among the tasks of its project."""
    if policy is QueuePolicy.FIFO:
        return lambda task: (0, task.queued_at_us, task.id.int)
    if policy is QueuePolicy.SHORTEST_JOB_FIRST:
        return lambda task: (_UNBOUNDED if task.work is None else task.work, task.queued_at_us, task.id.int)
    return lambda task: task.order_key


class Queues:
    """The waiting tasks of all virtual pools. It is not changed while units are read from it."""

    def __init__(self, tasks: Iterable[QueuedTask] = ()) -> None:
        self._tasks: dict[TaskId, QueuedTask] = {}
        self._queues: dict[VirtualPoolId, _Queue] = {}
        for task in tasks:
            self.add(task)

    def __iter__(self) -> Iterator[QueuedTask]:
        """The tasks in any order."""
        return iter(self._tasks.values())

    def add(self, task: QueuedTask) -> None:
        """The task waits from now on, in place of what waited under its id."""
        self.remove(task.id)
        self._tasks[task.id] = task
        queue = self._queues.get(task.virtual_pool)
        if queue is None:
            queue = self._queues[task.virtual_pool] = _Queue()
        queue.add(task)

    def remove(self, task: TaskId) -> None:
        """The task waits no longer; unknown ones are ignored."""
        known = self._tasks.pop(task, None)
        if known is not None:
            self._queues[known.virtual_pool].remove(known)

    def find_unit(self, task: TaskId) -> Unit | None:
        """What is decided together with a waiting task, if it is the first of it."""
        known = self._tasks.get(task)
        unit = None if known is None else self._queues[known.virtual_pool].unit_of(known)
        return unit if unit is not None and unit[0].id == task else None

    def list_units(
        self, policy_of: Callable[[VirtualPoolId], QueuePolicy]
    ) -> dict[VirtualPoolId, dict[ProjectId | None, Iterator[Unit]]]:
        """Per virtual pool, by id, its units in order; with fair share those of each project, else all under None."""
        found = {key: self._queues[key].list_units(policy_of(key)) for key in sorted(self._queues)}
        return {key: lines for key, lines in found.items() if lines}

    def read_units(self, policy_of: Callable[[VirtualPoolId], QueuePolicy]) -> Iterator[Unit]:
        """Every unit, one virtual pool after the other."""
        for lines in self.list_units(policy_of).values():
            for line in lines.values():
                yield from line


class _Queue:
    """The waiting tasks of one virtual pool. An entry is alive until its task leaves, or is entered anew."""

    def __init__(self) -> None:
        self._entries: dict[TaskId, _Entry] = {}
        self._gangs: defaultdict[Gang, dict[TaskId, QueuedTask]] = defaultdict(dict)
        self._policy = QueuePolicy.PRIORITY
        self._lines: dict[ProjectId | None, list[_Entry]] = {}
        self._fresh: list[_Entry] = []
        self._dead: set[int] = set()
        self._serial = count()

    def add(self, task: QueuedTask) -> None:
        self._enter(task)
        if task.gang is not None:
            self._gangs[task.gang][task.id] = task

    def remove(self, task: QueuedTask) -> None:
        self._dead.add(self._entries.pop(task.id)[_SERIAL])
        if task.gang is not None:
            members = self._gangs[task.gang]
            del members[task.id]
            if not members:
                del self._gangs[task.gang]

    def unit_of(self, task: QueuedTask) -> Unit:
        """Of a gang the tasks that are hardest to place come first: most devices, then most CPU, then most memory."""
        if task.gang is None:
            return (task,)
        key = key_of(self._policy)
        return tuple(sorted(self._gangs[task.gang].values(), key=lambda each: (*_hardest_first(each), *key(each))))

    def list_units(self, policy: QueuePolicy) -> dict[ProjectId | None, Iterator[Unit]]:
        self._sort(policy)
        return {project: self._read(line) for project, line in self._lines.items() if line}

    def _enter(self, task: QueuedTask) -> None:
        entry = self._entries[task.id] = (*key_of(self._policy)(task), next(self._serial), task)
        self._fresh.append(entry)

    def _is_alive(self, entry: _Entry) -> bool:
        return entry[_SERIAL] not in self._dead

    def _read(self, line: list[_Entry]) -> Iterator[Unit]:
        begun: set[Gang] = set()
        for entry in line:
            task = entry[-1]
            if not self._is_alive(entry):
                continue
            if task.gang is None:
                yield (task,)
            elif task.gang not in begun:
                begun.add(task.gang)
                yield self.unit_of(task)

    def _sort(self, policy: QueuePolicy) -> None:
        if policy is not self._policy:
            self._policy, self._lines, self._fresh = policy, {}, []
            self._dead.clear()
            for *_, task in list(self._entries.values()):
                self._enter(task)
        grown = set()
        for entry in filter(self._is_alive, self._fresh):
            project = entry[-1].project if policy is QueuePolicy.FAIR_SHARE else None
            self._lines.setdefault(project, []).append(entry)
            grown.add(project)
        self._fresh = []
        if len(self._dead) > max(_FEW, len(self._entries) // 8):
            self._lines = {project: list(filter(self._is_alive, line)) for project, line in self._lines.items()}
            self._dead.clear()
        for project in grown:
            self._lines[project].sort()


def _hardest_first(task: QueuedTask) -> tuple[int, int, int, str]:
    request, devices = task.request, task.request.devices
    milli = 0 if devices is None else devices.count * (devices.milli or 1)
    return (-milli, -request.cpu_milli, -request.memory_mib, task.group)
