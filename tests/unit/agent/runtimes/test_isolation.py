"""Users and environments of tasks."""

import tempfile
from pathlib import Path

import pytest

from millpond_node_agent.runtimes import isolation
from millpond_node_agent.runtimes.isolation import USER_RANGES, UserPool, UserRange, unreachable_parent
from millpond_node_agent.runtimes.protocol import RefusalCode, RefusedTask

pytestmark = pytest.mark.unit

_FULL = "CapEff:\t000001ffffffffff\n"


@pytest.mark.parametrize(
    ("euid", "uid_map", "capabilities", "expected"),
    [
        (0, "0 0 4294967295", _FULL, USER_RANGES[0]),
        (0, "0 100000 65536", _FULL, USER_RANGES[1]),
        (0, "0 1000 1", _FULL, None),
        (0, "0 0 4294967295", "CapEff:\t0000000000000000\n", None),
        (1000, "0 0 4294967295", _FULL, None),
    ],
)
def test_range_when_detected_then_it_fits_what_this_process_may_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    euid: int,
    uid_map: str,
    capabilities: str,
    expected: UserRange | None,
) -> None:
    (tmp_path / "uid_map").write_text(uid_map + "\n")
    (tmp_path / "status").write_text(capabilities)
    monkeypatch.setattr("os.geteuid", lambda: euid)

    assert isolation.detect_user_range(tmp_path / "uid_map", tmp_path / "status") == expected


def test_pool_when_users_come_and_go_then_a_number_rests_before_it_returns(tmp_path: Path) -> None:
    users = UserRange(5000, 3)
    assert UserPool(users, tmp_path / "cursor").take(set()) == 5000
    assert UserPool(users, tmp_path / "cursor").take(set()) == 5001, "the turn survives the agent"
    assert UserPool(users, tmp_path / "cursor").take({5002}) == 5000


def test_pool_when_all_users_are_taken_then_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(RefusedTask) as refusal:
        UserPool(UserRange(5000, 2), tmp_path / "cursor").take({5000, 5001})

    assert refusal.value.code is RefusalCode.NO_FREE_USER


def test_reach_when_a_parent_is_closed_then_it_is_named_and_else_the_way_is_free() -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "middle" / "work").mkdir(parents=True)
        assert unreachable_parent(place / "middle" / "work") is None
        (place / "middle").chmod(0o700)
        assert unreachable_parent(place / "middle" / "work") == (place / "middle").resolve()
