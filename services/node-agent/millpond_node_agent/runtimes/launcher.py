"""The small process that stands between the agent and one task, and outlives the agent.

It forks the task, pumps its output into the log, carries out stops (asked for, time limit, fence), kills what the
task left behind, and writes how it ended. The agent starts it with the launch plan on standard input, so that a task's
command and environment never touch the disk; everything else is in the run folder.

Steps: 1 detach, 2 claim the run, 3 fork the task, 4 tell the agent, 5 supervise until the group is empty, 6 record.
"""

import ctypes
import json
import os
import select
import signal
import sys
from types import FrameType
from typing import NoReturn

from millpond_node_agent.runtimes import runfolder
from millpond_node_agent.runtimes.boottime import boot_id, monotonic_ms, start_ticks
from millpond_node_agent.runtimes.groups import TaskGroup
from millpond_node_agent.runtimes.hiding import hide_other_processes
from millpond_node_agent.runtimes.logfile import LogWriter
from millpond_node_agent.runtimes.runfolder import Document

STOP_SIGNAL = signal.SIGUSR1  # asks the launcher to read `stop.json`
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CHUNK_BYTES = 64 * 1024
_EMPTY_POLL_MS = 20
_FENCE_POLL_MS = 5_000
_LONGEST_POLL_MS = 60_000
_KILL_PATIENCE_SECONDS = 0.5
_COMMAND_FAILED = "cannot start the command's program"
_NOT_FOUND = 127
_NOT_STARTED = 126


def main(folder: str) -> None:
    """Supervise the run in `folder` by the plan on standard input; returns when the run is recorded."""
    plan = json.loads(sys.stdin.buffer.read())
    told, tell = os.pipe()
    if os.fork():
        os.close(tell)
        os._exit(0 if os.read(told, 1) else 1)
    os.close(told)
    os.setsid()
    # The agent waits for the end of standard output, which then means that the process above has answered.
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.chdir("/")
    os.umask(0o077)
    # A stop that comes before the launcher listens must not end it; `run` looks for one that was missed.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, STOP_SIGNAL):
        signal.signal(number, signal.SIG_IGN)
    own = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "boot_id": boot_id()}
    if not runfolder.claim_document(os.path.join(folder, runfolder.LAUNCHER), own):
        os.write(tell, b"+")
        return
    Launcher(folder, plan, tell).run()


class Launcher:
    """One task from fork to record."""

    def __init__(self, folder: str, plan: Document, tell: int) -> None:
        self._folder = folder
        self._plan = plan
        self._tell = tell
        self._group = TaskGroup(plan["group"], os.getpid())
        self._log = LogWriter(folder)
        self._boot_id = boot_id()
        self._started_ms = monotonic_ms()
        self._active_ms: int | None = None
        self._ended_ms: int | None = None
        self._kill_ms: int | None = None
        self._grace_ms = int(plan["grace_seconds"] * 1000)
        self._limit_ms: int | None = None
        self._fence_ms = 0
        self._fence_kill_ms = 0
        self._stop_reason: str | None = None
        self._message: str | None = None
        self._pid = 0
        self._status = 0
        self._cpu_ms = 0
        self._peak_mib = 0
        self._output = -1
        self._wake = -1

    def run(self) -> None:
        """Fork, supervise and record."""
        _prctl(_PR_SET_CHILD_SUBREAPER)
        self._watch_children()
        self._start()
        self._obey_stop()
        while self._ended_ms is None or self._group.pids():
            self._wait()
            self._reap()
            self._enforce(monotonic_ms())
        self._record(monotonic_ms())

    def _watch_children(self) -> None:
        self._wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (signal.SIGCHLD, STOP_SIGNAL):
            signal.signal(number, _do_nothing)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def _start(self) -> None:
        failed, fail = os.pipe()
        self._output, output = os.pipe()
        os.set_blocking(self._output, False)
        self._pid = os.fork()
        if self._pid == 0:
            _become_task(self._plan, self._group, output, fail)
        os.close(fail)
        os.close(output)
        # The pipe closes by itself when the command takes over; words in it mean that it never did.
        words = b"".join(iter(lambda: os.read(failed, 4096), b""))
        os.close(failed)
        if words:
            self._message = words.decode("utf-8", "replace")
            self._log.write(f"millpond: {self._message}\n".replace(_COMMAND_FAILED, self._named(), 1).encode())
        else:
            self._activate()
        os.write(self._tell, b"+")
        os.close(self._tell)

    def _named(self) -> str:
        """The failure with the program's name: the log is the tenant's own, the message becomes an event."""
        return f"cannot start {self._plan['argv'][0]!r}"

    def _activate(self) -> None:
        self._active_ms = monotonic_ms()
        if self._plan["time_limit_seconds"] is not None:
            self._limit_ms = self._active_ms + self._plan["time_limit_seconds"] * 1000
        started = {
            "pid": self._pid,
            "start_ticks": start_ticks(self._pid),
            "boot_id": self._boot_id,
            "started_monotonic_ms": self._started_ms,
            "active_monotonic_ms": self._active_ms,
        }
        runfolder.write_document(os.path.join(self._folder, runfolder.STARTED), started)

    def _wait(self) -> None:
        """Sleep until output, a dead child or the next deadline; move output to the log."""
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        if self._output >= 0:
            poller.register(self._output, select.POLLIN)
        for descriptor, _ in poller.poll(self._pause_ms(monotonic_ms())):
            if descriptor == self._output:
                self._pump()
            elif STOP_SIGNAL in os.read(self._wake, 512):
                self._obey_stop()

    def _pause_ms(self, now_ms: int) -> int:
        if self._ended_ms is not None:
            return _EMPTY_POLL_MS
        deadlines = [self._kill_ms] if self._stop_reason else [self._limit_ms, self._fence_ms]
        waits = [deadline - now_ms for deadline in deadlines if deadline is not None]
        return max(1, min([_LONGEST_POLL_MS, *waits]))

    def _pump(self) -> bool:
        """Move one chunk to the log; False when there is none."""
        try:
            data = os.read(self._output, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            os.close(self._output)
            self._output = -1
            return False
        self._log.write(data)
        return True

    def _reap(self) -> None:
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._ended_ms = monotonic_ms()
                self._status = status
                self._cpu_ms = int((used.ru_utime + used.ru_stime) * 1000)
                self._peak_mib = used.ru_maxrss // 1024
                # Children that outlive the task die now, unless a stop gave the whole group a grace that still runs.
                if self._kill_ms is None:
                    self._kill_ms = self._ended_ms

    def _obey_stop(self) -> None:
        stop = runfolder.read_document(os.path.join(self._folder, runfolder.STOP))
        if stop is None or self._ended_ms is not None:
            return
        kill_ms = int(stop["kill_monotonic_ms"])
        if self._stop_reason is None:
            self._begin_stop("requested", kill_ms)
        elif self._kill_ms is not None:
            self._kill_ms = min(self._kill_ms, kill_ms)

    def _enforce(self, now_ms: int) -> None:
        if self._ended_ms is None and self._stop_reason is None:
            if self._limit_ms is not None and now_ms >= self._limit_ms:
                self._begin_stop("time_limit", now_ms + self._grace_ms)
            elif now_ms >= self._fence_ms and self._is_fenced(now_ms):
                self._begin_stop("lease_expired", min(now_ms + self._grace_ms, self._fence_kill_ms))
        if self._kill_ms is not None and now_ms >= self._kill_ms:
            self._group.kill(_KILL_PATIENCE_SECONDS)

    def _begin_stop(self, reason: str, kill_ms: int) -> None:
        self._stop_reason = reason
        self._kill_ms = kill_ms
        self._group.send(signal.SIGTERM)

    def _is_fenced(self, now_ms: int) -> bool:
        """Whether the node's lease ran out; also remembers when to look again."""
        fence = runfolder.read_document(self._plan["fence"])
        if fence is None or fence["boot_id"] != self._boot_id:
            self._fence_ms = now_ms + _FENCE_POLL_MS
            return False
        self._fence_ms = int(fence["deadline_monotonic_ms"])
        # Whatever grace the task has: by the end of the lease its devices may be another's.
        self._fence_kill_ms = int(fence["kill_monotonic_ms"])
        return now_ms >= self._fence_ms

    def _record(self, empty_ms: int) -> None:
        while self._output >= 0 and self._pump():
            pass
        self._log.close()
        code = os.waitstatus_to_exitcode(self._status)
        kills = self._group.oom_kills()
        cpu_ms, peak_mib = self._group.usage()
        record = {
            "boot_id": self._boot_id,
            "pid": self._pid,
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "oom_kills": kills,
            # The counter alone is not enough: a task may survive the death of a child and succeed.
            "oom_killed": kills > 0 and code != 0,
            "started_monotonic_ms": self._started_ms,
            "active_monotonic_ms": self._active_ms,
            "ended_monotonic_ms": self._ended_ms,
            "empty_monotonic_ms": empty_ms,
            "stop_reason": self._stop_reason,
            "message": self._message,
            "cpu_ms": self._cpu_ms if cpu_ms is None else cpu_ms,
            "peak_memory_mib": self._peak_mib if peak_mib is None else peak_mib,
            "log_bytes": self._log.total_bytes,
            "log_lost_bytes": self._log.lost_bytes,
        }
        runfolder.write_document(os.path.join(self._folder, runfolder.EXIT), record, durable=True)


def _become_task(plan: Document, group: TaskGroup, output: int, fail: int) -> NoReturn:
    """Turn this forked child into the task; on failure tell the launcher why through `fail`."""
    step, code = "cannot enter its cgroup", _NOT_STARTED
    try:
        os.setsid()
        group.join()
        if plan["hide_processes"]:
            step = "cannot hide the processes of others"
            hide_other_processes()
        step = "cannot take its user"
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if plan["uid"] is not None:
            os.setgroups(plan["gids"])
            os.setresgid(plan["uid"], plan["uid"], plan["uid"])
            os.setresuid(plan["uid"], plan["uid"], plan["uid"])
        _prctl(_PR_SET_NO_NEW_PRIVS)
        os.umask(0o077)
        _reset_signals()
        step = "cannot enter its work folder"
        os.chdir(plan["cwd"])
        step = _COMMAND_FAILED
        code = _NOT_FOUND
        os.execvpe(plan["argv"][0], plan["argv"], plan["env"])
    except BaseException as error:
        if not isinstance(error, FileNotFoundError):
            code = _NOT_STARTED
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        os.write(fail, f"{step}: {reason}".encode()[:4096])
        os._exit(code)


def _reset_signals() -> None:
    """Python ignores some signals and the launcher more; an ignored signal would stay ignored in the command."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Let the wake-up descriptor speak."""


def _prctl(option: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
