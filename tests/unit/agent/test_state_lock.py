"""The lock on an agent's state folder."""

import os
from pathlib import Path

import pytest

from millpond_node_agent.identity import FolderInUse, StateLock

pytestmark = pytest.mark.unit


def find_copy(path: Path) -> int:
    """A copy of the descriptor under which this process holds a file, as a child has before it becomes a program."""
    for entry in Path("/proc/self/fd").iterdir():
        if entry.exists() and entry.resolve() == path:
            return os.dup(int(entry.name))
    raise AssertionError(f"{path} is not open")


def test_folder_when_its_lock_is_released_while_a_child_has_a_copy_then_another_agent_may_take_it(
    tmp_path: Path,
) -> None:
    lock = StateLock(tmp_path)
    with pytest.raises(FolderInUse):
        StateLock(tmp_path)
    copy = find_copy(tmp_path / "agent.lock")
    lock.release()
    StateLock(tmp_path).release()
    os.close(copy)
