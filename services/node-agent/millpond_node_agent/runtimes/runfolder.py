"""The files of one run: small JSON documents that appear whole or not at all.

`run.json`       written by the agent before anything starts: identity, limits, group, user
`launcher.json`  claims the run: which process supervises it; exists at most once
`started.json`   the task's process, when it began and when its command took over (active)
`stop.json`      a stop was asked for, and when the grace ends
`exit.json`      how it ended; written only when the group is empty
`log`, `log.…`   what it printed (see `logfile`)
"""

import json
import os
from typing import Any

RUN = "run.json"
LAUNCHER = "launcher.json"
STARTED = "started.json"
STOP = "stop.json"
EXIT = "exit.json"

Document = dict[str, Any]


def write_document(path: str, document: Document, durable: bool = False) -> None:
    """Put `document` at `path`, replacing what was there; with `durable` it survives a power cut."""
    scratch = _write_scratch(path, document, durable)
    os.replace(scratch, path)
    if durable:
        _sync_folder(os.path.dirname(path))


def claim_document(path: str, document: Document) -> bool:
    """Put `document` at `path` unless something is there; False when somebody else was first."""
    scratch = _write_scratch(path, document, durable=False)
    try:
        os.link(scratch, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(scratch)
    return True


def read_document(path: str) -> Document | None:
    """The document at `path`; None when there is none."""
    try:
        with open(path, "rb") as file:
            document = json.loads(file.read())
    except FileNotFoundError:
        return None
    return document if isinstance(document, dict) else None


def _write_scratch(path: str, document: Document, durable: bool) -> str:
    scratch = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(document, file, separators=(",", ":"))
        if durable:
            file.flush()
            os.fsync(file.fileno())
    return scratch


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
