"""Turns the documents of a run folder into values, and says what they mean together."""

from dataclasses import asdict, fields
from pathlib import Path

from millpond_node_agent.runtimes import runfolder
from millpond_node_agent.runtimes.boottime import boot_id, start_ticks
from millpond_node_agent.runtimes.protocol import (
    DeviceGrant,
    PartitionGrant,
    Run,
    StopReason,
    TaskState,
    TaskStatus,
    TaskTerms,
)
from millpond_node_agent.runtimes.runfolder import Document

LOST = "the supervising process is gone: how the task ends is not known"


def run_document(terms: TaskTerms, group: Document, order: int) -> Document:
    """What `run.json` says; command and environment stay out of it.

    Args:
        terms: of the task.
        group: the handle of its `TaskGroup`.
        order: monotonic milliseconds of the preparation, for listing oldest first.
    """
    return {
        "format": 1,
        "boot_id": boot_id(),
        "prepared_monotonic_ms": order,
        **asdict(terms),
        "group": group,
    }


def parse_run(document: Document, status: TaskStatus) -> Run:
    """The run that `document` describes, with its status."""
    kept = {field.name: document[field.name] for field in fields(TaskTerms)}
    grants = tuple(_parse_grant(grant) for grant in document["devices"])
    return Run(TaskTerms(**kept | {"devices": grants}), status)


def _parse_grant(document: Document) -> DeviceGrant:
    partition = document.get("partition")
    return DeviceGrant(**document | {"partition": None if partition is None else PartitionGrant(**partition)})


def read_status(folder: Path) -> TaskStatus:
    """The state of the run in `folder`, from its documents and the process table."""
    # Order matters: the launcher writes the exit before it goes, so its absence must be seen first.
    launcher = runfolder.read_document(str(folder / runfolder.LAUNCHER))
    alive = launcher is not None and is_alive(launcher)
    ended = runfolder.read_document(str(folder / runfolder.EXIT))
    if ended is not None:
        return _parse_exit(ended)
    started = runfolder.read_document(str(folder / runfolder.STARTED))
    if launcher is None:
        return TaskStatus(TaskState.PREPARED, boot_id())
    if started is None:
        state = TaskState.STARTING if alive else TaskState.UNKNOWN
        return TaskStatus(state, launcher["boot_id"], message=None if alive else LOST)
    return TaskStatus(
        state=TaskState.RUNNING if alive else TaskState.UNKNOWN,
        boot_id=started["boot_id"],
        pid=started["pid"],
        started_monotonic_ms=started["started_monotonic_ms"],
        active_monotonic_ms=started["active_monotonic_ms"],
        message=None if alive else LOST,
    )


def is_alive(process: Document) -> bool:
    """Whether the process with this pid, start time and boot still runs; a reused pid does not count."""
    if process["pid"] <= 0 or process["boot_id"] != boot_id() or process["start_ticks"] is None:
        return False
    return bool(start_ticks(process["pid"]) == process["start_ticks"])


def lost_exit(known: TaskStatus, empty_ms: int) -> Document:
    """The exit record the agent writes itself when no launcher is left to do it; the group is empty."""
    same_boot = known.boot_id == boot_id()
    return {
        "boot_id": boot_id(),
        "pid": known.pid,
        "exit_code": None,
        "signal": None,
        "oom_killed": False,
        "stop_reason": StopReason.REQUESTED,
        "message": known.message,
        "started_monotonic_ms": known.started_monotonic_ms if same_boot else None,
        "active_monotonic_ms": known.active_monotonic_ms if same_boot else None,
        "ended_monotonic_ms": empty_ms,
        "empty_monotonic_ms": empty_ms,
        "cpu_ms": None,
        "peak_memory_mib": None,
    }


def _parse_exit(document: Document) -> TaskStatus:
    reason = document["stop_reason"]
    return TaskStatus(
        state=TaskState.EXITED,
        boot_id=document["boot_id"],
        pid=document["pid"],
        exit_code=document["exit_code"],
        signal=document["signal"],
        oom_killed=document["oom_killed"],
        stop_reason=None if reason is None else StopReason(reason),
        message=document["message"],
        started_monotonic_ms=document["started_monotonic_ms"],
        active_monotonic_ms=document["active_monotonic_ms"],
        ended_monotonic_ms=document["ended_monotonic_ms"],
        empty_monotonic_ms=document["empty_monotonic_ms"],
    )
