"""Probe processes under a deadline: started, read, killed, and never waited for when even the kill hangs.

A process in uninterruptible sleep does not die of SIGKILL until the driver lets go of it. It is then left behind, and
no other probe of that kind is started while it lives: a stuck driver must not collect a pile of children.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

from pydantic import ValidationError

from millpond_node_agent.hardware.report import ProbeOutcome, ProbeReport, clip

_MODULE = "millpond_node_agent.hardware.probe"
_ANSWER_LIMIT = 8 * 1024 * 1024
_KILL_SECONDS = 0.5
# The child gives up on its own a little earlier, so that what it has read until then still arrives.
_CHILD_SHARE = 0.7
_PATIENCE_SECONDS = 3.0
_START_SECONDS = 20.0
_BACK_OFF_SECONDS = (1.0, 2.0, 5.0, 15.0, 60.0)


class ProbeChild:
    """One probe process with pipes; every wait is bounded."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        # A file, not a pipe: nobody reads it while the child runs, and a full pipe would hold the child up.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._process = subprocess.Popen(
            # -P and the root folder: nothing lying about in a working folder is imported.
            [sys.executable, "-P", "-m", _MODULE, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd="/",
            env=dict(environment),
            start_new_session=True,
        )
        self._rest = b""

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def ask(self) -> bool:
        """Sends the line that asks for one more answer; False when the child is gone."""
        stream = self._process.stdin
        try:
            if stream is not None:
                stream.write(b"\n")
                stream.flush()
        except OSError:
            return False
        return stream is not None

    def read_report(self, vendor: str, seconds: float) -> ProbeReport:
        """The next answer; one that does not come in time, or is not a report, is a report that says so."""
        end = time.monotonic() + seconds
        stream = self._process.stdout
        # Not select(): with a thousand tasks the agent has more descriptors than that can take.
        poller = select.poll()
        if stream is not None:
            poller.register(stream, select.POLLIN)
        while b"\n" not in self._rest and stream is not None:
            left = end - time.monotonic()
            if left <= 0 or not poller.poll(left * 1000):
                return _failed(vendor, ProbeOutcome.STUCK, f"no answer within {seconds:.1f} s")
            chunk = os.read(stream.fileno(), 65536)
            self._rest += chunk
            if not chunk or len(self._rest) > _ANSWER_LIMIT:
                return _failed(vendor, ProbeOutcome.FAILED, f"the probe ended without an answer: {self._last_words()}")
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            return ProbeReport.model_validate_json(line)
        except ValidationError as error:
            return _failed(vendor, ProbeOutcome.FAILED, f"the probe's answer is not a report: {error}")

    def kill(self) -> None:
        """Sends SIGKILL to the child's whole group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> bool:
        """Kills the child's group, closes its pipes and says whether the child is gone."""
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        return self.is_gone(_KILL_SECONDS)

    def is_gone(self, seconds: float = 0.0) -> bool:
        """Whether the child has ended, waiting at most `seconds` for it."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _last_words(self) -> str:
        self.is_gone(_KILL_SECONDS)
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 200))
        return self._errors.read().decode("utf-8", "replace") or f"exit code {self._process.returncode}"


class ProbeRunner:
    """Runs one vendor's inventory probe, at most one at a time, stuck ones counted."""

    def __init__(self, vendor: str, environment: Mapping[str, str]) -> None:
        self._vendor = vendor
        self._environment = environment
        self._lock = threading.Lock()
        self._running: ProbeChild | None = None
        self._stuck: ProbeChild | None = None

    def run(self, seconds: float) -> ProbeReport:
        """The vendor's answer within `seconds` and half a second; blocks, so it runs in a thread."""
        with self._lock:
            return self._run(seconds)

    def stop(self) -> None:
        """Ends what still runs; a probe that is being waited for comes back at once."""
        running = self._running
        if running is not None:
            running.kill()
        with self._lock:
            if self._stuck is not None and self._stuck.end():
                self._stuck = None

    def _run(self, seconds: float) -> ProbeReport:
        if self._stuck is not None:
            if not self._stuck.end():
                return _failed(self._vendor, ProbeOutcome.STUCK, f"an earlier probe, process {self._stuck.pid}, hangs")
            self._stuck = None
        arguments = ["--vendor", self._vendor, "--seconds", str(seconds * _CHILD_SHARE)]
        try:
            child = ProbeChild(arguments, self._environment)
        except OSError as error:
            return _failed(self._vendor, ProbeOutcome.FAILED, f"the probe does not start: {error}")
        self._running = child
        report = child.read_report(self._vendor, seconds)
        self._running = None
        if not child.end():
            self._stuck = child
        return report


class SignalReader:
    """Samples one vendor's signals from a child that stays, started anew, later and later, after it failed."""

    def __init__(self, vendor: str, environment: Mapping[str, str]) -> None:
        self._vendor = vendor
        self._environment = environment
        self._lock = threading.Lock()
        self._child: ProbeChild | None = None
        self._stuck: ProbeChild | None = None
        self._asked_at: float | None = None
        self._answered = False
        self._failures = 0
        self._not_before = 0.0

    def sample(self, seconds: float) -> ProbeReport:
        """One sample within `seconds`; blocks, so it runs in a thread.

        An answer that comes later, as the first one does while the driver starts, is waited for by the next call, for
        as long as `_PATIENCE_SECONDS`; then the child is replaced.
        """
        with self._lock:
            return self._sample(seconds)

    def close(self) -> None:
        """Ends the child; NVML then no longer holds the devices open, which a reset needs."""
        with self._lock:
            self._close()

    def _sample(self, seconds: float) -> ProbeReport:
        child = self._child or self._start(seconds)
        if child is None:
            return _failed(self._vendor, ProbeOutcome.STUCK, "waiting before the next try")
        if self._asked_at is None:
            if not child.ask():
                return self._drop(_failed(self._vendor, ProbeOutcome.FAILED, "the probe has ended"))
            self._asked_at = time.monotonic()
        report = child.read_report(self._vendor, seconds)
        if report.source == "none" and report.outcome is ProbeOutcome.STUCK:
            patience = _PATIENCE_SECONDS if self._answered else _START_SECONDS
            return report if time.monotonic() - self._asked_at < patience else self._drop(report)
        self._asked_at = None
        if report.outcome is not ProbeOutcome.OK:
            return self._drop(report)
        self._answered, self._failures = True, 0
        return report

    def _close(self) -> None:
        if self._child is not None and not self._child.end():
            self._stuck = self._child
        self._child, self._asked_at, self._answered = None, None, False

    def _start(self, seconds: float) -> ProbeChild | None:
        if time.monotonic() < self._not_before or (self._stuck is not None and not self._stuck.end()):
            return None
        self._stuck = None
        try:
            self._child = ProbeChild(
                ["--vendor", self._vendor, "--signals", "--follow", "--seconds", str(seconds * _CHILD_SHARE)],
                self._environment,
            )
        except OSError:
            self._back_off()
        return self._child

    def _drop(self, report: ProbeReport) -> ProbeReport:
        self._close()
        self._back_off()
        return report

    def _back_off(self) -> None:
        self._not_before = time.monotonic() + _BACK_OFF_SECONDS[min(self._failures, len(_BACK_OFF_SECONDS) - 1)]
        self._failures += 1


def _failed(vendor: str, outcome: ProbeOutcome, error: str) -> ProbeReport:
    return ProbeReport(vendor=vendor, source="none", outcome=outcome, error=clip(error))
