"""The first thing a newcomer sees."""

import subprocess
import sys

import pytest
from tests.unit.client.commands import run

pytestmark = pytest.mark.unit

WANTED = {
    "Your jobs": ("submit", "ps", "job", "logs", "explain", "cancel", "wait", "queue"),
    "Machines and pools": ("nodes", "node", "pools", "pool", "capacity", "devices", "flavors", "join", "join-token"),
    "Tenants and limits": ("tenant", "project", "key", "limit", "usage"),
    "Money": ("bill", "export", "price"),
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
