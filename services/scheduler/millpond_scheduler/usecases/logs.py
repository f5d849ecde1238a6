"""Taking and reading the text of tasks. The text is with the `LogStore`, how far it reaches is a row."""

import base64
import binascii
import codecs
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from millpond_contracts.bodies.jobs import LogPage, TaskState
from millpond_contracts.bodies.work import LogAnswer, LogChunk
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import AllocationId, JobId, TaskId
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.states import is_final
from millpond_scheduler.providers.log_folder import LogStore
from millpond_scheduler.store import jobs, logs
from millpond_scheduler.usecases.work import NodeCall, check_session

MAX_CHUNK_BYTES = 256 * 1024
PAGE_BYTES = 256 * 1024
# A log whose end was never told (its node was lost) counts as ended so long after its release.
LATE_CHUNKS = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt as a reader of its log needs it; `allocation` None = it was never placed."""

    task: TaskId
    attempt: int
    allocation: AllocationId | None
    next_offset: int
    ended: bool
    cut: bool


async def take_chunk(unit: UnitOfWork, store: LogStore, call: NodeCall, chunk: LogChunk) -> LogAnswer:
    """Keeps what is new of a chunk; the answer tells where the agent should go on.

    A chunk beyond the end is refused, unless the agent says that the text between was left out (`cut`).

    Raises:
        ProblemError: 404 not this node's allocation, 409 stale epoch, superseded session or a gap, 413 too long,
            422 not base64.
    """
    await check_session(unit, call)
    data = _decode(chunk)
    row = await unit.fetchrow("SELECT node_id, epoch FROM allocation WHERE id = $1", chunk.allocation_id)
    if row is None or row["node_id"] != call.node:
        raise ProblemError(ErrorCode.ALLOCATION_NOT_FOUND, f"This node holds no allocation {chunk.allocation_id}.")
    if row["epoch"] != chunk.epoch:
        raise ProblemError(
            ErrorCode.ALLOCATION_EPOCH_STALE,
            f"The chunk names epoch {chunk.epoch}, the allocation has epoch {row['epoch']}.",
        )
    log = await logs.lock_log(unit, chunk.allocation_id)
    reached = int(log["next_offset"])
    if chunk.offset > reached and not chunk.cut:
        raise ProblemError(
            ErrorCode.LOG_OFFSET_GAP,
            f"The log ends at {reached}, the chunk begins at {chunk.offset}; go on at {reached}.",
        )
    start = max(chunk.offset, reached)
    fresh = data[start - chunk.offset :]
    if fresh:
        # Before the row: bytes that a failed transaction leaves behind are written again in the same place.
        await store.append(chunk.allocation_id, start, fresh)
    reached = max(reached, chunk.offset + len(data))
    await logs.move_log(unit, chunk.allocation_id, reached, ended=chunk.ended, cut=chunk.cut)
    return LogAnswer(next_offset=reached)


def _decode(chunk: LogChunk) -> bytes:
    try:
        data = base64.b64decode(chunk.data_base64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProblemError(ErrorCode.BODY_INVALID, "data_base64: expected standard base64 with padding.") from error
    if len(data) > MAX_CHUNK_BYTES:
        raise ProblemError(ErrorCode.BODY_TOO_LARGE, f"A chunk has at most {MAX_CHUNK_BYTES} bytes.")
    return data


async def find_attempt(unit: UnitOfWork, job: JobId, task: TaskId | None, attempt: int | None) -> Attempt:
    """The attempt whose log is wanted: by default the newest of the job's first task.

    Raises:
        ProblemError: 404, no such job, task or attempt as the caller's scope may see it.
    """
    await jobs.get_job(unit, job)
    row = await logs.find_attempt(unit, job, task, attempt)
    if row is None:
        raise ProblemError(ErrorCode.TASK_NOT_FOUND, f"Job {job} has no task {task}.")
    if attempt is not None and row["allocation_id"] is None and attempt > row["newest_attempt"]:
        raise ProblemError(
            ErrorCode.TASK_NOT_FOUND, f"The task's newest attempt is {row['newest_attempt']}, not {attempt}."
        )
    never_placed = row["allocation_id"] is None and is_final(TaskState(row["task_state"]))
    is_late = row["released_at"] is not None and row["released_at"] < datetime.now(UTC) - LATE_CHUNKS
    return Attempt(
        task=TaskId.of(row["task_id"]),
        attempt=row["attempt"],
        allocation=None if row["allocation_id"] is None else AllocationId.of(row["allocation_id"]),
        next_offset=row["next_offset"] or 0,
        ended=bool(row["ended"]) or never_placed or is_late,
        cut=bool(row["cut"]),
    )


async def read_page(store: LogStore, attempt: Attempt, offset: int, limit: int = PAGE_BYTES) -> LogPage:
    """Text from `offset` on; text that was left out is marked where it was, and never splits a character."""
    start, data = offset, b""
    if attempt.allocation is not None and offset < attempt.next_offset:
        start, data = await store.read(attempt.allocation, offset, min(limit, attempt.next_offset - offset))
    if start >= attempt.next_offset:
        start, data = offset, b""
    following = start + len(data)
    is_last = attempt.ended and following >= attempt.next_offset
    # What is cut off by a gap has no rest to wait for.
    is_cut_off = len(data) < 4 and following < attempt.next_offset
    text, used = _decode_text(data, final=is_last or is_cut_off)
    left_out = start - offset
    if left_out and data:
        text = f"\n[... {left_out} bytes were left out ...]\n{text}"
    return LogPage(
        task_id=attempt.task,
        attempt=attempt.attempt,
        offset=offset,
        next_offset=start + used,
        text=text,
        ended=is_last,
        cut=attempt.cut or left_out > 0,
    )


def _decode_text(data: bytes, *, final: bool) -> tuple[str, int]:
    """The text of the bytes and how many of them it took: a character cut at the end waits for its rest."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final)
    waiting = 0 if final else len(decoder.getstate()[0])
    return text, len(data) - waiting
