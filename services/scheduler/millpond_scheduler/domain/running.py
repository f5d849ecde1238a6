"""What runs, as whoever may have to stop it sees it: what stops together, at what cost, and the cheapest of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from millpond_contracts.ids import JobId, ProjectId, TaskId, VirtualPoolId
from millpond_scheduler.domain.admission import CPU, MEMORY, Resource, device
from millpond_scheduler.domain.plans import Holding


@dataclass(frozen=True, slots=True)
class Running:
    """A task that holds something, bound at `started_us`, until `ends_us` at the latest (None = it has no time limit).

    `gang` names the job whose gang stops with it.
    """

    holding: Holding
    virtual_pool: VirtualPoolId
    flavor: str | None
    priority: int
    started_us: int
    gang: JobId | None = None
    is_stopping: bool = False
    project: ProjectId | None = None
    stop_grace_seconds: int = 0
    ends_us: int | None = None

    @property
    def id(self) -> TaskId:
        return self.holding.task

    def lost(self, now_us: int) -> int:
        """The work that a stop throws away, in microseconds times device milli: all of it since its start.

        Once tasks can keep a checkpoint, what is kept counts no more; then it is asked for before anything stops.
        """
        return max(now_us - self.started_us, 0) * max(self.holding.device_milli, 1)

    def grace(self) -> int:
        """What stopping it costs beside: how long its devices may lie idle until they are free."""
        return self.stop_grace_seconds * max(self.holding.device_milli, 1)

    def demand(self) -> dict[Resource, int]:
        """What it counts against the limits of its virtual pool."""
        held = {CPU: self.holding.cpu_milli, MEMORY: self.holding.memory_mib}
        if self.flavor is not None:
            held[device(self.flavor)] = self.holding.device_milli
        return held


Cost: TypeAlias = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class StopGroup:
    """What stops together: a task, or all running tasks of a gang."""

    tasks: tuple[Running, ...]

    @property
    def virtual_pool(self) -> VirtualPoolId:
        return self.tasks[0].virtual_pool

    @property
    def priority(self) -> int:
        return max(task.priority for task in self.tasks)

    def cost(self, now_us: int) -> Cost:
        """Cheapest first: low priority, little work lost, short grace, few tasks; the id decides between equals."""
        lost = sum(task.lost(now_us) for task in self.tasks)
        return (self.priority, lost, sum(task.grace() for task in self.tasks), len(self.tasks), self.tasks[0].id.int)


def choose_above(running: Iterable[Running], above: Mapping[Resource, int], now_us: int) -> list[TaskId]:
    """The tasks of one virtual pool that stop so that it holds so much less, the cheapest, and no more than needed.

    Args:
        running: everything it holds; what is stopping already counts as gone.
        above: what it holds above its limits, by resource.
    """
    tasks = sorted(running, key=lambda task: task.id.int)
    missing = dict(above)
    for task in tasks:
        if task.is_stopping:
            _add(missing, task, -1)
    groups = sorted(
        group_running([task for task in tasks if not task.is_stopping]), key=lambda group: group.cost(now_us)
    )
    picked: list[StopGroup] = []
    for group in groups:
        if any(
            missing.get(resource, 0) > 0 for task in group.tasks for resource, held in task.demand().items() if held
        ):
            picked.append(group)
            for task in group.tasks:
                _add(missing, task, -1)
    for group in reversed(picked[:]):
        without = dict(missing)
        for task in group.tasks:
            _add(without, task, 1)
        if all(amount <= 0 for amount in without.values()):
            picked.remove(group)
            missing = without
    return [task.id for group in picked for task in group.tasks]


def _add(missing: dict[Resource, int], task: Running, sign: int) -> None:
    for resource, amount in task.demand().items():
        if resource in missing:
            missing[resource] += sign * amount


def group_running(tasks: Iterable[Running]) -> list[StopGroup]:
    """What stops together."""
    gangs: dict[object, list[Running]] = {}
    for task in tasks:
        gangs.setdefault(task.id if task.gang is None else task.gang, []).append(task)
    return [StopGroup(tuple(members)) for members in gangs.values()]
