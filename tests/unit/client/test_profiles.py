"""Profiles: one private file, and variables that win over it."""

from pathlib import Path

import pytest

from millpond.profiles import NoProfile, Profile, config_file, find_profile, list_profiles, save_profile, use_profile

pytestmark = pytest.mark.unit

HOME = Profile(url="http://home", api_key="key-1")
WORK = Profile(url="http://work", api_key="key-2", virtual_pool="main")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment whose profiles lie in a folder of the test."""
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_save_when_another_is_added_then_both_are_known_and_it_is_current(environment: dict[str, str]) -> None:
    save_profile("home", HOME, environment=environment)
    file = save_profile("work", WORK, environment=environment)
    assert list_profiles(environment) == ("work", {"home": HOME, "work": WORK})
    assert (file, file.stat().st_mode & 0o777) == (config_file(environment), 0o600)


def test_find_when_several_say_then_argument_variable_and_current_in_this_order(environment: dict[str, str]) -> None:
    save_profile("home", HOME, environment=environment)
    save_profile("work", WORK, environment=environment)
    assert find_profile(None, environment) == WORK
    assert find_profile(None, environment | {"MILLPOND_PROFILE": "home"}) == HOME
    assert find_profile("work", environment | {"MILLPOND_PROFILE": "home"}) == WORK


def test_find_when_variables_are_set_then_they_win_over_the_profile(environment: dict[str, str]) -> None:
    save_profile("work", WORK, environment=environment)
    found = find_profile(None, environment | {"MILLPOND_API_KEY": "other"})
    assert found == Profile(url="http://work", api_key="other", virtual_pool="main")
    bare = {"MILLPOND_URL": "http://here", "MILLPOND_API_KEY": "other"}
    assert find_profile(None, bare | {"XDG_CONFIG_HOME": "/nowhere"}) == Profile(url="http://here", api_key="other")


def test_use_when_known_then_current(environment: dict[str, str]) -> None:
    save_profile("home", HOME, environment=environment)
    save_profile("work", WORK, environment=environment)
    use_profile("home", environment)
    assert find_profile(None, environment) == HOME
    with pytest.raises(NoProfile, match="known: home, work"):
        use_profile("moon", environment)


def test_find_when_nothing_says_then_how_to_begin(environment: dict[str, str]) -> None:
    with pytest.raises(NoProfile, match="millpond up"):
        find_profile(None, environment)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"profiles": {"a": {"url": "x"}}}', '{"profiles": [1]}', "\x00\xff"])
def test_list_when_the_file_is_broken_then_it_is_named(environment: dict[str, str], text: str) -> None:
    config_file(environment).parent.mkdir()
    config_file(environment).write_text(text, encoding="latin-1")
    with pytest.raises(NoProfile, match=r"config\.json cannot be read"):
        list_profiles(environment)


def test_list_when_a_newer_version_wrote_more_then_it_is_ignored(environment: dict[str, str]) -> None:
    file = save_profile("home", HOME, environment=environment)
    file.write_text(file.read_text().replace('"virtual_pool": null', '"virtual_pool": null, "mood": "good"'))
    assert list_profiles(environment) == ("home", {"home": HOME})
