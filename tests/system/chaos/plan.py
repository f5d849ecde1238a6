"""Which faults happen in a run, to whom and for how long: by the seed alone, so that a failure replays."""

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from millpond_kernel.fail_points import FailPoint

SERVICES: Final = ("registry", "quota", "scheduler", "billing", "autoscaler")
HTTP: Final = tuple(f"http-{name}" for name in SERVICES)
WORKERS: Final = tuple(f"worker-{name}" for name in SERVICES)
STEADY: Final = "fleet-steady"
BRITTLE: Final = "fleet-brittle"
# The lease of the nodes that are lost now and then; the others outlive every outage here.
BRITTLE_LEASE_SECONDS: Final = 10


class FaultKind(StrEnum):
    """What can be done to a stack. The fail points have the kernel's names."""

    KILL = "kill"
    KILL_ALL = "kill_all"
    TERMINATE = "terminate"
    FREEZE = "freeze"
    BEFORE_COMMIT = FailPoint.BEFORE_COMMIT.value
    AFTER_COMMIT = FailPoint.AFTER_COMMIT.value
    BEFORE_PUBLISH = FailPoint.BEFORE_PUBLISH.value
    AFTER_PUBLISH = FailPoint.AFTER_PUBLISH.value
    INSIDE_APPLY = FailPoint.INSIDE_APPLY.value
    AFTER_APPLY = FailPoint.AFTER_APPLY.value
    KILL_POSTGRES = "kill_postgres"
    END_BACKENDS = "end_backends"
    KILL_VALKEY = "kill_valkey"
    EMPTY_VALKEY = "empty_valkey"
    DELETE_STREAM = "delete_stream"
    FREEZE_VALKEY = "freeze_valkey"
    DOUBLE_REQUESTS = "double_requests"
    DELAY_REQUESTS = "delay_requests"
    LOSE_ANSWERS = "lose_answers"
    PARTITION_NODES = "partition_nodes"
    FREEZE_NODES = "freeze_nodes"
    SECOND_WORKERS = "second_workers"
    JUMP_SERVICES = "jump_services"
    JUMP_NODES = "jump_nodes"
    FILL_DISK = "fill_disk"
    POISON_EVENT = "poison_event"


_BEYOND_LEASE = (2.0 * BRITTLE_LEASE_SECONDS, 2.0 * BRITTLE_LEASE_SECONDS)

# Kind -> (what it may be done to, the shortest and the longest time it lasts in seconds).
TARGETS: Final[dict[FaultKind, tuple[Sequence[str], tuple[float, float]]]] = {
    FaultKind.KILL: ((*HTTP, *WORKERS, "celery", "gateway", "agent", STEADY), (0, 0)),
    FaultKind.KILL_ALL: (("all",), (0, 0)),
    FaultKind.TERMINATE: ((*HTTP, *WORKERS, "celery", "gateway"), (0, 0)),
    FaultKind.FREEZE: ((*HTTP, *WORKERS, STEADY), (1, 6)),
    FaultKind.BEFORE_COMMIT: ((*HTTP, *WORKERS), (0, 0)),
    FaultKind.AFTER_COMMIT: ((*HTTP, *WORKERS), (0, 0)),
    FaultKind.BEFORE_PUBLISH: (WORKERS, (0, 0)),
    FaultKind.AFTER_PUBLISH: (WORKERS, (0, 0)),
    FaultKind.INSIDE_APPLY: (WORKERS, (0, 0)),
    FaultKind.AFTER_APPLY: (WORKERS, (0, 0)),
    FaultKind.KILL_POSTGRES: (("postgres",), (0, 0)),
    FaultKind.END_BACKENDS: (("postgres",), (0, 0)),
    FaultKind.KILL_VALKEY: (("valkey",), (0, 0)),
    FaultKind.EMPTY_VALKEY: (("valkey",), (0, 0)),
    FaultKind.DELETE_STREAM: (SERVICES, (0, 0)),
    FaultKind.FREEZE_VALKEY: (("valkey",), (3, 30)),
    FaultKind.DOUBLE_REQUESTS: ((STEADY, BRITTLE), (5, 10)),
    FaultKind.DELAY_REQUESTS: ((STEADY, BRITTLE), (5, 10)),
    FaultKind.LOSE_ANSWERS: ((STEADY, BRITTLE), (5, 10)),
    FaultKind.PARTITION_NODES: ((BRITTLE,), _BEYOND_LEASE),
    FaultKind.FREEZE_NODES: ((BRITTLE,), _BEYOND_LEASE),
    FaultKind.SECOND_WORKERS: (("all",), (6, 6)),
    FaultKind.JUMP_SERVICES: (("300", "-300", "3600", "-3600"), (4, 8)),
    FaultKind.JUMP_NODES: (("3600", "-3600", "86400", "-86400"), (4, 8)),
    FaultKind.FILL_DISK: (("postgres", "valkey"), (2, 4)),
    FaultKind.POISON_EVENT: (("registry",), (0, 0)),
}
# These go on while other faults happen.
BESIDE: Final = frozenset(
    {
        FaultKind.DOUBLE_REQUESTS,
        FaultKind.DELAY_REQUESTS,
        FaultKind.LOSE_ANSWERS,
        FaultKind.PARTITION_NODES,
        FaultKind.FREEZE_NODES,
        FaultKind.SECOND_WORKERS,
        FaultKind.JUMP_NODES,
    }
)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault: after a pause, of a kind, to a target, for some seconds. `draw` is its own randomness, 0 to 1."""

    kind: FaultKind
    target: str
    pause_seconds: float
    lasts_seconds: float
    draw: float


def plan_faults(seed: int, without: Collection[FaultKind] = ()) -> Iterator[PlannedFault]:
    """Faults without an end, in rounds that hold every kind once; a kind comes to each of its targets in turn.

    Args:
        without: Kinds that this machine does not allow; the others come as they would with them.
    """
    rng = random.Random(seed)
    targets = {kind: rng.sample(list(names), len(names)) for kind, (names, _) in TARGETS.items()}
    number = 0
    while True:
        # What lasts long begins each round, so that the rest happens beside it.
        kinds = sorted(rng.sample(list(FaultKind), len(FaultKind)), key=lambda kind: kind not in _LONGEST)
        for kind in kinds:
            names, (shortest, longest) = targets[kind], TARGETS[kind][1]
            fault = PlannedFault(
                kind, names[number % len(names)], rng.uniform(0, 0.8), rng.uniform(shortest, longest), rng.random()
            )
            if kind not in without:
                yield fault
        number += 1


_LONGEST: Final = (FaultKind.PARTITION_NODES,)
