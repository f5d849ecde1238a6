"""The command line: codes and words of starts that cannot succeed, and where secrets come from."""

import argparse
import json
from pathlib import Path

import pytest

from millpond_node_agent.heartbeat import wanted_name
from millpond_node_agent.identity import NodeKey
from millpond_node_agent.main import build_parser, read_settings, run_command
from millpond_node_agent.observability import configure_logging
from millpond_node_agent.settings import ExitCode

pytestmark = pytest.mark.unit


def options(tmp_path: Path, *words: str) -> argparse.Namespace:
    folders = ["--state-dir", str(tmp_path / "state"), "--work-dir", str(tmp_path / "tasks")]
    return build_parser().parse_args([*words, *folders])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["run"], "join token"),
        (["run", "--label", "rack"], "KEY=VALUE"),
        (["run", "--token-file", "/does/not/exist"], "/does/not/exist"),
        (["join", "localhost:7070", "some-token"], "http://10.0.0.5:7070"),
    ],
)
def test_command_when_it_cannot_start_then_code_and_reason(
    tmp_path: Path, words: list[str], reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILLPOND_JOIN_TOKEN", raising=False)
    # Task users need not reach the test's closed folder here.
    monkeypatch.setattr("millpond_node_agent.runtimes.process.detect_user_range", lambda: None)
    configure_logging()
    code = run_command(options(tmp_path, *words))

    last = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert code is ExitCode.NOT_JOINED
    assert (last["event"], reason in last["reason"]) == ("cannot_start", True)


def test_settings_when_the_token_is_in_the_environment_then_it_is_taken_out_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLPOND_JOIN_TOKEN", "secret-join-token")
    first = read_settings(options(tmp_path, "run", "--url", "http://host:1", "--label", "rack=7"))
    second = read_settings(options(tmp_path, "run"))

    assert (first.token, second.token) == ("secret-join-token", None)
    assert first.labels == {"rack": "7"}
    assert "secret-join-token" not in repr(first)


def test_key_when_loaded_twice_then_the_same_and_private(tmp_path: Path) -> None:
    first, second = NodeKey.load(tmp_path), NodeKey.load(tmp_path)

    assert first.public_text == second.public_text
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("hostname", "name"),
    [
        ("GPU-07.Example.COM", "gpu-07.example.com"),
        ("über_host", "ber_host"),
        ("…", "node"),
        (None, "node"),
        ("a" * 90, "a" * 63),
    ],
)
def test_wanted_name_when_made_from_a_hostname_then_it_is_a_valid_name(hostname: str | None, name: str) -> None:
    assert wanted_name(hostname) == name
