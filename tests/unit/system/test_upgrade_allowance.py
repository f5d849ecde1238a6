"""What an upgrade forgives a version that does not ask again after a migration: that fault of that request alone."""

import json
from pathlib import Path

import pytest

from tests.system.stack import Stack
from tests.system.upgrade.versions import STALE_STATEMENT, Installation, Version, this_version

pytestmark = pytest.mark.unit

_OLD = Version("old", Path("python"), (), may_be_behind=True, asks_again=False)


def test_failed_requests_when_a_log_tells_of_several_errors_then_only_of_the_wanted_one_by_request(
    tmp_path: Path,
) -> None:
    site = Installation(Stack(tmp_path, 1, split=False), "", "", "")
    site.stack.paths.logs.mkdir(parents=True)
    stale = {"event": "unexpected_error", "exception": f"asyncpg.{STALE_STATEMENT}: cached plan"}
    lines = [
        json.dumps(stale | {"request_id": "a"}),
        json.dumps(stale | {"request_id": "a"}),
        json.dumps({"event": "unexpected_error", "exception": "KeyError: 'x'", "request_id": "b"}),
        json.dumps({"event": "event_failed", "exception": f"asyncpg.{STALE_STATEMENT}: cached plan"}),
        f"a line of a library about {STALE_STATEMENT}",
    ]
    (site.stack.paths.logs / "old-http.log").write_text("\n".join(lines), encoding="utf-8")
    assert site.failed_requests(_OLD, "http", STALE_STATEMENT) == {"a": 2}


def test_version_when_it_is_this_one_then_it_asks_again_and_nothing_is_forgiven() -> None:
    assert this_version().asks_again
