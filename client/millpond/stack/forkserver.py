"""A process that has the services' libraries in memory and forks each Python process of a stack from itself.

Forked processes share the memory of what was imported, and start in milliseconds instead of a second. The server
has one thread and no event loop: a fork copies neither. It speaks JSON lines over one socket with the supervisor:

    in   {"op": "fork", "id": 1, "module": ..., "arguments": [...], "environment": {...}, ...}
         {"op": "signal", "pid": 17, "signal": 15, "group": false}
    out  {"op": "forked", "id": 1, "pid": 17}
         {"op": "exited", "pid": 17, "code": -9}

It is the parent of what it forks, so it delivers signals (no pid can be reused between) and reports exits. When
the socket closes it kills what is left and ends; when it is killed, the kernel kills its children.

Run as `python -m millpond.stack.forkserver --control-fd N --preload json,fastapi`.
"""

import argparse
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from millpond.stack.launch import open_log, tie_to_parent
from millpond.stack.users import SystemUser

# <linux/prctl.h>; the kernel keeps 15 bytes.
_PR_SET_NAME = 15
# Length of an argument that only reserves memory for the titles of forked processes.
TITLE_ROOM = 160


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """What the supervisor wants forked.

    Attributes:
        id: Comes back with the pid.
        name: Becomes the title of the process.
        module: Run as `python -m module` would.
        arguments: sys.argv after the program.
        environment: The whole environment.
        folder: Working folder.
        log_file: Gets standard output and error.
        user: Name, uid, gid; None = as the fork server.
        death_signal: Sent by the kernel when the fork server ends.
    """

    id: int
    name: str
    module: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    log_file: str
    user: tuple[str, int, int] | None
    death_signal: int

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Self:
        """The request of a line that `to_line` made; JSON has no tuples, so the user is made one again."""
        return cls(**{**message, "user": tuple(message["user"]) if message["user"] else None})

    def to_line(self) -> bytes:
        """Returns the request as the line that the server reads."""
        return json.dumps({"op": "fork", **asdict(self)}).encode() + b"\n"


class ForkServer:
    """The loop of the server; returns a request in the child, None in the server."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._buffer = b""
        self._children: set[int] = set()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_writer.setblocking(False)
        self._server_pid = os.getpid()

    def serve(self) -> ForkRequest | None:
        """Serves until the control socket closes.

        Returns:
            In a forked child, the request it has to become; in the server, None at the end.
        """
        signal.set_wakeup_fd(self._wake_writer.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wake_reader, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._wake_reader in ready:
                    self._wake_reader.recv(4096)
                    self._reap()
                if self._control in ready:
                    lines = self._read_lines()
                    if lines is None:
                        break
                    for line in lines:
                        request = self._handle(json.loads(line))
                        if request is not None:
                            return request
        self._kill_all()
        return None

    def _read_lines(self) -> list[bytes] | None:
        part = self._control.recv(65_536)
        if not part:
            return None
        *lines, self._buffer = (self._buffer + part).split(b"\n")
        return lines

    def _handle(self, message: dict[str, Any]) -> ForkRequest | None:
        op = message.pop("op")
        if op == "signal":
            self._signal(message["pid"], message["signal"], message["group"])
            return None
        return self._fork(ForkRequest.from_message(message))

    def _fork(self, request: ForkRequest) -> ForkRequest | None:
        pid = os.fork()
        if pid == 0:
            return self._leave_server(request)
        self._children.add(pid)
        self._send({"op": "forked", "id": request.id, "pid": pid})
        return None

    def _leave_server(self, request: ForkRequest) -> ForkRequest:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self._control, self._wake_reader, self._wake_writer):
            end.close()
        os.setsid()
        become(request, self._server_pid)
        return request

    def _signal(self, pid: int, number: int, group: bool) -> None:
        if pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(pid, number)

    def _reap(self) -> None:
        while self._children:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            # Before the pid is free for reuse: end what the process left behind in its group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(ended.si_pid, signal.SIGKILL)
            _, status = os.waitpid(ended.si_pid, 0)
            self._children.discard(ended.si_pid)
            self._send({"op": "exited", "pid": ended.si_pid, "code": os.waitstatus_to_exitcode(status)})

    def _kill_all(self) -> None:
        for pid in self._children:
            self._signal(pid, signal.SIGKILL, True)

    def _send(self, message: dict[str, object]) -> None:
        # A supervisor that is gone shows as the end of the control socket in the next round.
        with contextlib.suppress(BrokenPipeError):
            self._control.sendall(json.dumps(message).encode() + b"\n")


def become(request: ForkRequest, server_pid: int) -> None:
    """Turns a freshly forked child into the requested process, up to running its module."""
    user = SystemUser(*request.user) if request.user is not None else None
    with open_log(Path(request.log_file), user) as log, open(os.devnull, "rb") as nothing:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    if user is not None:
        os.setgroups([])
        os.setgid(user.gid)
        os.setuid(user.uid)
    os.umask(0o077)
    os.chdir(request.folder)
    tie_to_parent(server_pid, signal.Signals(request.death_signal))
    name_process(f"millpond: {request.name}", short=request.name)
    gc.enable()


def name_process(title: str, *, short: str) -> None:
    """Makes `ps` show `title` as the command line and `short` (15 bytes) as the name of this process.

    Writes over the memory that holds the arguments, which is where the kernel reads a command line from.
    Source: proc_pid_stat(5), fields 48 and 49.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, short.encode()[:15], 0, 0, 0)
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if 0 < start < end:
        room = end - start
        ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)


def preload(modules: list[str]) -> None:
    """Imports `modules` and moves all that exists out of the collector's sight, so that memory stays shared."""
    gc.disable()
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:
            # Whoever needs it fails by itself, with its own name on the error.
            sys.stderr.write(f"fork server: cannot import {module}\n")
            traceback.print_exc()
    gc.collect()
    gc.freeze()


def main() -> None:
    """Runs the server; in a forked child, the requested module."""
    parser = argparse.ArgumentParser(prog="millpond.stack.forkserver")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--preload", default="", help="names of modules, separated by commas")
    parser.add_argument("--title-room", default="", help="ignored; its length reserves room for titles")
    options = parser.parse_args()
    control = socket.socket(fileno=options.control_fd)
    control.set_inheritable(False)
    name_process("millpond: fork server", short="fork-server")
    preload([name for name in options.preload.split(",") if name])
    request = ForkServer(control).serve()
    if request is not None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)
        sys.argv = [request.module, *request.arguments]
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
