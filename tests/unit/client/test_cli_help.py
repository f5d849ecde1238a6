"""The first thing a newcomer sees."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.client.commands import run

pytestmark = pytest.mark.unit

WANTED = {
    "Your jobs": ("submit", "plan", "ps", "job", "logs", "explain", "cancel", "wait", "queue", "top"),
    "Machines and pools": ("nodes", "node", "pools", "pool", "capacity", "devices", "flavors", "join", "join-token"),
    "Tenants and limits": ("tenant", "project", "key", "limit", "usage"),
    "Money": ("bill", "export", "exports", "report", "price"),
    "This stack": ("up", "down", "status", "login", "profile", "whoami", "events", "audit", "migrate"),
}


def test_help_when_asked_for_then_commands_stand_in_their_groups() -> None:
    panel, found = "", dict[str, set[str]]()
    for line in run(None, "--help", columns=100).out.splitlines():
        if line.startswith("╭─"):
            panel = line.strip("╭─╮ ")
        elif line.startswith("│ ") and line[2] != " ":
            found.setdefault(panel, set()).add(line[2:].split()[0])
    missing = {name: set(commands) - found.get(name, set()) for name, commands in WANTED.items()}
    assert not any(missing.values()), missing


@pytest.mark.parametrize("command", [command for commands in WANTED.values() for command in commands])
def test_help_when_asked_of_each_command_then_it_says_something(command: str) -> None:
    ran = run(None, command, "-h", columns=100)
    assert ran.code == 0
    assert "Usage: millpond" in ran.out
    assert any(line.strip().endswith((".", "`.")) for line in ran.out.splitlines())


def test_command_line_when_imported_then_no_server_package_is() -> None:
    code = (
        "import sys, millpond.cli.main;"
        "print(sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'fastapi', 'sqlalchemy', 'asyncpg', 'redis', 'celery', 'numpy', 'uvicorn', 'starlette', 'alembic'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_command_line_when_interrupted_while_it_loads_then_it_ends_without_a_traceback(tmp_path: Path) -> None:
    # A module that everything imports stands in the way and says so.
    (tmp_path / "httpx.py").write_text("import sys, time; print('loading', flush=True); time.sleep(60)")
    loading = subprocess.Popen(
        [sys.executable, "-m", "millpond", "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert loading.stdout is not None
    assert loading.stdout.readline() == "loading\n"
    loading.send_signal(signal.SIGINT)
    _, errors = loading.communicate(timeout=30)
    assert (loading.returncode, errors) == (-signal.SIGINT, "")


def test_command_line_when_run_as_a_module_then_it_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "millpond", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("millpond ")
