"""What this machine still has to tell, and what happened on it: two append-only files that survive any crash.

**Reports** wait in `reports.jsonl` until the control plane has made them durable. Each gets the next sequence number
of this machine; so within one allocation the numbers rise, over restarts too, and a receiver may ignore what is not
higher than what it has seen. `acknowledged.json` holds the highest number that is done with.

**The journal** (`journal.jsonl`, older parts `journal.<n>.jsonl`) says what happened, for anyone who wants to check a
bill without asking the control plane. One JSON object a line, in the order of writing:

    {"format": 1, "kind": "active", "allocation_id": "…", "boot_id": "…", "monotonic_ms": 81234, "wall_ms": 17…, …}

* `kind`: `start` (the task's process was forked), `active` (its command took over; a task that could not start has no
  such line), `exit` (the main process ended; with `exit_code` or `signal`, both null when nobody saw it, and
  `oom_killed`), `empty` (the last process of its group is gone). One line per allocation and kind; for a run that
  outlasts two parts of the journal a line may be repeated with the same instant.
* `monotonic_ms`: milliseconds since boot, time asleep included, valid within `boot_id`. The billed time is from
  `active` to `empty`; the two may be compared only when their `boot_id` is the same. An allocation that has `active`
  and no `empty` of the same boot was cut off by a restart of the machine: its end is not in this file.
* `wall_ms`: the machine's own idea of Unix time when the line was written; only for people.
* Every line repeats `job_id`, `task_id`, `tenant_id`, `attempt`, `epoch`, `cpu_milli`, `memory_mib` and `devices`
  (a list of `identity`, `milli`, `memory_mib`), so that a line can be read alone.

A line that a crash cut short is dropped when the file is opened; nothing that was returned to a caller can be in it.
"""

import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from millpond_node_agent.runtimes import runfolder
from millpond_node_agent.runtimes.protocol import Run

_REPORTS = "reports.jsonl"
_ACKNOWLEDGED = "acknowledged.json"
_JOURNAL = "journal.jsonl"


class SpoolFull(Exception):
    """Too much is waiting for the control plane; take no new work until some of it is acknowledged."""


@dataclass(frozen=True, slots=True)
class SpooledReport:
    """A report that is not acknowledged yet."""

    sequence: int
    report: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """Bounds of the files: waiting reports, dead bytes before a rewrite, size of a journal part, parts kept."""

    pending_reports: int = 100_000
    dead_bytes: int = 4 * 1024 * 1024
    journal_part_bytes: int = 8 * 1024 * 1024
    journal_parts: int = 32


class Spool:
    """The two files in one folder. Safe to use from several threads; one process at a time."""

    def __init__(self, folder: Path, limits: SpoolLimits | None = None, *, is_durable: bool = True) -> None:
        """Open the files of `folder` (made 0700 when missing) and drop lines that a crash cut short.

        Without `is_durable` what is written survives the end of the process, and no power cut.
        """
        self._is_durable = is_durable
        self._limits = limits or SpoolLimits()
        self._folder = folder
        self._lock = threading.Lock()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        acknowledged = runfolder.read_document(str(folder / _ACKNOWLEDGED))
        self._acknowledged = int(acknowledged["acknowledged"]) if acknowledged else 0
        self._sequence = self._acknowledged
        self._pending: deque[SpooledReport] = deque()
        self._reports = _LineFile(folder / _REPORTS, is_durable)
        for line in _lines(folder / _REPORTS):
            self._sequence = max(self._sequence, int(line["sequence"]))
            if line["sequence"] > self._acknowledged:
                self._pending.append(SpooledReport(line["sequence"], line["report"]))
        self._journal = _LineFile(self.journal_path, self._is_durable)
        self._recorded = self._read_recorded()

    @property
    def journal_path(self) -> Path:
        """The journal's newest part."""
        return self._folder / _JOURNAL

    def journal_parts(self) -> list[Path]:
        """All parts of the journal, oldest first."""
        older = sorted(self._folder.glob("journal.*.jsonl"), key=_part_number)
        return [*older, self.journal_path]

    def append(self, report: Mapping[str, object]) -> int:
        """Keep `report` until it is acknowledged; it is on disk when this returns.

        Returns:
            Its sequence number, higher than every earlier one of this machine.

        Raises:
            SpoolFull: the bound of waiting reports is reached.
            OSError: the disk refused it; nothing was kept.
        """
        with self._lock:
            if len(self._pending) >= self._limits.pending_reports:
                raise SpoolFull(f"{len(self._pending)} reports are waiting")
            sequence = self._sequence + 1
            self._reports.append({"sequence": sequence, "report": report})
            self._sequence = sequence
            self._pending.append(SpooledReport(sequence, dict(report)))
            return sequence

    def pending(self, limit: int) -> list[SpooledReport]:
        """The oldest reports that are not acknowledged, at most `limit`."""
        with self._lock:
            return [report for report, _ in zip(self._pending, range(limit), strict=False)]

    def acknowledge(self, upto: int) -> None:
        """Forget all reports up to and including this sequence number."""
        with self._lock:
            upto = min(upto, self._sequence)
            if upto <= self._acknowledged:
                return
            runfolder.write_document(
                str(self._folder / _ACKNOWLEDGED), {"acknowledged": upto}, durable=self._is_durable
            )
            self._acknowledged = upto
            while self._pending and self._pending[0].sequence <= upto:
                self._pending.popleft()
            if self._reports.size > self._limits.dead_bytes:
                self._reports.rewrite({"sequence": kept.sequence, "report": kept.report} for kept in self._pending)

    def record_run(self, run: Run) -> None:
        """Write every instant of `run` that is known and not in the journal yet."""
        status = run.status
        ends = {"exit_code": status.exit_code, "signal": status.signal, "oom_killed": status.oom_killed}
        instants: tuple[tuple[str, int | None, Mapping[str, object]], ...] = (
            ("start", status.started_monotonic_ms, {}),
            ("active", status.active_monotonic_ms, {}),
            ("exit", status.ended_monotonic_ms, ends),
            ("empty", status.empty_monotonic_ms, {}),
        )
        with self._lock:
            for kind, instant, more in instants:
                if instant is not None and (run.allocation_id, kind) not in self._recorded:
                    self._record(kind, instant, run, more)

    def close(self) -> None:
        """Give the files back."""
        with self._lock:
            self._reports.close()
            self._journal.close()

    def _record(self, kind: str, instant: int, run: Run, more: Mapping[str, object]) -> None:
        if self._journal.size > self._limits.journal_part_bytes:
            self._start_part()
        terms = run.terms
        devices = [
            {"identity": grant.identity, "milli": grant.milli, "memory_mib": grant.memory_mib}
            for grant in terms.devices
        ]
        line = {
            "format": 1,
            "kind": kind,
            "allocation_id": terms.allocation_id,
            "boot_id": run.status.boot_id,
            "monotonic_ms": instant,
            "wall_ms": time.time_ns() // 1_000_000,
            "job_id": terms.job_id,
            "task_id": terms.task_id,
            "tenant_id": terms.tenant_id,
            "attempt": terms.attempt,
            "epoch": terms.epoch,
            "cpu_milli": terms.cpu_milli,
            "memory_mib": terms.memory_mib,
            "devices": devices,
            **more,
        }
        self._journal.append(line)
        self._recorded.add((run.allocation_id, kind))

    def _read_recorded(self) -> set[tuple[str, str]]:
        """What the newest two parts say; the others would fill the memory of a busy machine."""
        newest = self.journal_parts()[-2:]
        return {(line["allocation_id"], line["kind"]) for path in newest for line in _lines(path)}

    def _start_part(self) -> None:
        *older, newest = self.journal_parts()
        number = _part_number(older[-1]) + 1 if older else 1
        self._journal.close()
        newest.rename(self._folder / f"journal.{number}.jsonl")
        for path in [*older, newest][: -self._limits.journal_parts]:
            path.unlink(missing_ok=True)
        self._journal = _LineFile(self.journal_path, self._is_durable)
        self._recorded = self._read_recorded()


class _LineFile:
    """A file of JSON lines: a line is on disk, whole, when `append` returns, or it is not there at all."""

    def __init__(self, path: Path, is_durable: bool) -> None:
        self._path = path
        self._is_durable = is_durable
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.size = _whole_lines(path)
        os.ftruncate(self._file, self.size)

    def append(self, line: Mapping[str, object]) -> None:
        data = _encode(line)
        try:
            _write_all(self._file, data)
            self._sync(self._file)
        except OSError:
            os.ftruncate(self._file, self.size)
            raise
        self.size += len(data)

    def rewrite(self, lines: Iterator[Mapping[str, object]]) -> None:
        """Replace the whole content."""
        scratch = self._path.with_suffix(".new")
        scratch.unlink(missing_ok=True)
        fresh = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        for line in lines:
            _write_all(fresh, _encode(line))
        self._sync(fresh)
        scratch.replace(self._path)
        os.close(self._file)
        self._file = fresh
        self.size = os.fstat(fresh).st_size

    def close(self) -> None:
        os.close(self._file)

    def _sync(self, descriptor: int) -> None:
        if self._is_durable:
            os.fdatasync(descriptor)


def _encode(line: Mapping[str, object]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _whole_lines(path: Path) -> int:
    """The length of the file up to its last line end."""
    size = path.stat().st_size
    with path.open("rb") as file:
        while size:
            start = max(0, size - 65_536)
            file.seek(start)
            found = file.read(size - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            size = start
    return 0


def _lines(path: Path) -> Iterator[runfolder.Document]:
    """The readable lines; one that a broken disk garbled does not hide the others."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for raw in file:
            try:
                line = json.loads(raw)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield line


def _part_number(path: Path) -> int:
    return int(path.name.split(".")[1])
