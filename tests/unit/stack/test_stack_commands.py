"""What `millpond up` leaves on this machine for the command line."""

from pathlib import Path

import pytest
from rich.console import Console

from millpond.profiles import Profile, list_profiles, save_profile
from millpond.stack.commands import tell_ready
from millpond.stack.options import StackOptions
from millpond.stack.paths import locate_stack
from millpond.stack.running import RunningStack

pytestmark = pytest.mark.unit


def test_up_when_the_stack_has_a_name_then_its_profile_has_it_too_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    other = Profile(url="http://127.0.0.1:7070", api_key="mp_other")
    save_profile("default", other)
    options = StackOptions(name="second", port=7171)
    stack = RunningStack(options, locate_stack(data_folder=tmp_path), "mp_key", tmp_path / "operator.key", 1.0)

    tell_ready(Console(), stack)

    assert list_profiles() == ("second", {"default": other, "second": Profile(options.url, "mp_key")})
    assert "second in" in capsys.readouterr().out
