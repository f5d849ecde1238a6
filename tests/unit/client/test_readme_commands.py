"""The README's commands exist, with the options that it shows."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from millpond.cli.main import app

pytestmark = pytest.mark.unit

README = Path(__file__).parents[3] / "README.md"
PATTERN = re.compile(r"^(?:VIRTUAL_POOL=\$\()?(millpond [^\n]*?)\)?$", re.MULTILINE)
COMMANDS = PATTERN.findall(README.read_text(encoding="utf-8"))


def test_readme_when_read_then_it_shows_commands() -> None:
    assert len(COMMANDS) >= 10


@pytest.mark.parametrize("line", COMMANDS)
def test_readme_when_a_command_is_parsed_then_it_exists(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command, context = typer.main.get_command(app), None
    while words and hasattr(command, "commands"):
        found = command.commands.get(words[0])
        assert found is not None, f"{words[0]} in: {line}"
        command, words = found, words[1:]
    context = command.make_context("millpond", words)
    assert context.args == []
