"""What would let a task start that rules on places hold back, for people."""

from millpond_contracts.resources import TopologyLevel
from millpond_scheduler.domain.plans import Rejection
from millpond_scheduler.domain.requests import Bound, QueuedTask, RequestClass
from millpond_scheduler.domain.topology import LEVELS, in_words
from millpond_scheduler.domain.verdicts import Reason, Unblock


def suggest_by_place(task: QueuedTask, request: RequestClass, rejection: Rejection) -> list[Unblock]:
    """One line for each rule on places that nodes fail, if no limit comes before it."""
    found = []
    if rejection.counts.get(Reason.TOPOLOGY_UNKNOWN):
        levels = ", ".join(level.value for level in LEVELS if level in request.levels)
        count = rejection.counts[Reason.TOPOLOGY_UNKNOWN]
        action = f"label the nodes with {levels}, which an operator can (`millpond node label`)"
        found.append(Unblock(action, f"it is not known where {count} of the pool's nodes stand"))
    if rejection.reason is Reason.AFFINITY_MISMATCH:
        labels = ", ".join(each.label for each in request.affinity)
        found.append(Unblock(f"ask for other values of {labels}", "no node of the pool has those that are asked for"))
    for bound in () if task.rules is None else task.rules.bounds:
        if rejection.counts.get(bound.reason):
            found.append(_wait_for(bound, rejection.counts[bound.reason]))
    return found


def _wait_for(bound: Bound, nodes: int) -> Unblock:
    others = "tasks of the job"
    if bound.labels:
        labels = ", ".join(f"{key}={value}" for key, value in sorted(bound.labels))
        others = f"the tasks of jobs labelled {labels}"
    elif bound.of_group:
        others = "tasks of the group"
    other = "nodes" if bound.level is TopologyLevel.NODE else f"nodes in another {in_words(bound.level)}"
    room = f"{nodes} nodes have room but for those" if nodes > 1 else "1 node has room but for those"
    return Unblock(f"wait until {others} end, or add {other}", room)
