"""How commands fail: words on stderr, an exit code, never a traceback."""

from pathlib import Path

import httpx
import pytest

from millpond.cli.failures import run_friendly
from millpond_contracts.errors import ErrorCode
from tests.unit.client.commands import run
from tests.unit.client.fake_api import FakeApi, problem

pytestmark = pytest.mark.unit


def test_command_when_refused_then_says_why_and_which_request() -> None:
    api = FakeApi().on("GET", "/v1/jobs", problem(ErrorCode.ROLE_FORBIDDEN, "viewers may not [see] this"))
    ran = run(api, "ps")
    assert (ran.code, ran.out) == (1, "")
    assert "error: viewers may not [see] this" in ran.err
    assert "millpond whoami" in ran.err
    assert "(kernel.role.forbidden, HTTP 403, request req-1)" in ran.err


def test_command_when_the_key_is_refused_then_says_where_it_comes_from() -> None:
    api = FakeApi().on("GET", "/v1/jobs", problem(ErrorCode.CREDENTIALS_REVOKED, "revoked"))
    assert "millpond login" in run(api, "ps").err


def test_command_when_nothing_answers_then_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr("millpond.client.client.real_sleep", lambda _: None)
    api = FakeApi().on("GET", "/v1/me", httpx.ConnectError("refused"))
    ran = run(api, "whoami")
    assert (ran.code, "no answer from http://millpond.test: refused" in ran.err) == (3, True)


def test_command_when_there_is_no_profile_then_says_how_to_make_one(tmp_path: Path) -> None:
    ran = run(None, "ps", MILLPOND_URL="", MILLPOND_API_KEY="", XDG_CONFIG_HOME=str(tmp_path))
    assert (ran.code, "millpond up" in ran.err, "millpond login URL" in ran.err) == (2, True, True)


def test_command_when_the_profiles_are_broken_then_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "millpond").mkdir()
    (tmp_path / "millpond" / "config.json").write_text("{")
    ran = run(None, "ps", MILLPOND_URL="", MILLPOND_API_KEY="", XDG_CONFIG_HOME=str(tmp_path))
    assert (ran.code, "config.json cannot be read" in ran.err_words) == (2, True)


def test_command_when_interrupted_then_130_and_what_runs_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(Exception, match="130") as caught:
        run_friendly(interrupt)
    assert getattr(caught.value, "exit_code", None) == 130
    assert "goes on" in capsys.readouterr().err


def test_command_when_unknown_then_usage() -> None:
    assert run(FakeApi(), "launch").code == 2
