"""What a hostile task tries: run as `python3 -c SOURCE TARGETS`; prints as JSON what it could reach.

It imports nothing of ours. The test runs it once as a task, which must reach nothing, and once by itself as root, which
must reach something of every kind: else the attempts would prove nothing.
"""

import json
import os
import socket
import sys
from collections.abc import Iterator


def attempt_files(paths: list[str]) -> Iterator[str]:
    for path in paths:
        try:
            with open(path, "rb") as file:
                file.read(1)
            yield path
        except OSError:
            continue


def attempt_folders(paths: list[str]) -> Iterator[str]:
    for path in paths:
        try:
            os.listdir(path)
            yield path
        except OSError:
            continue


def attempt_sockets(paths: list[str]) -> Iterator[str]:
    for path in paths:
        with socket.socket(socket.AF_UNIX) as sock:
            try:
                sock.connect(path)
                yield path
            except OSError:
                continue


def attempt_engines(ports: dict[str, int]) -> Iterator[str]:
    """Whether Valkey obeys, or PostgreSQL lets somebody in, without a password."""
    hello = b"user\0millpond_owner\0database\0millpond\0\0"
    startup = (len(hello) + 8).to_bytes(4, "big") + (196_608).to_bytes(4, "big") + hello
    for name, question, welcome in (("valkey", b"PING\r\n", b"+PONG"), ("postgres", startup, b"R\0\0\0\x08\0\0\0\0")):
        with socket.create_connection(("127.0.0.1", ports[name]), 5) as sock:
            sock.sendall(question)
            answer = sock.recv(64)
        if answer.startswith(welcome):
            yield name


def attempt_processes(marks: list[str]) -> Iterator[str]:
    """Other processes: environments, memory and folders of any, and command lines with a mark in them."""
    own = os.getpid()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in (own, os.getppid()):
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                file.read(1)
            yield f"environ {entry}"
            os.listdir(f"/proc/{entry}/root")
            yield f"root {entry}"
        except OSError:
            pass
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                line = file.read().decode(errors="replace")
            yield from (f"mark {mark}" for mark in marks if mark in line)
        except OSError:
            pass


def attempt_signals(pids: list[int]) -> Iterator[int]:
    for pid in pids:
        try:
            os.kill(pid, 0)
            yield pid
        except OSError:
            continue


def main() -> None:
    targets = json.loads(sys.argv[1])
    found = {
        "files": list(attempt_files(targets["files"])),
        "folders": list(attempt_folders(targets["folders"])),
        "sockets": list(attempt_sockets(targets["sockets"])),
        "engines": list(attempt_engines(targets["ports"])),
        "processes": list(attempt_processes(targets["marks"])),
        "signals": list(attempt_signals(targets["pids"])),
        "environment": [name for name, value in os.environ.items() if "mp_" in value or "://" in value],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
