"""What a log line may hold when something unexpected fails."""

import json

import asyncpg
import pytest

from millpond_contracts.bodies.groups import RunSpec
from millpond_kernel.observability import RequestComplaint, configure_logging, log

pytestmark = pytest.mark.unit

CANARY = "canary-4711"


def test_error_when_postgresql_tells_the_failing_row_then_the_log_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    error = asyncpg.CheckViolationError('new row violates check constraint "x"')
    error.detail = f"Failing row contains (1, {CANARY},\n{CANARY})."
    log.error("unexpected_error", exc_info=error)
    line = capsys.readouterr().err
    assert "violates check constraint" in json.loads(line)["exception"]
    assert CANARY not in line


def test_error_when_a_body_is_refused_then_its_text_does_not_quote_the_body() -> None:
    with pytest.raises(ValueError, match="env") as caught:
        RunSpec.model_validate({"command": ["true"], "env": {"not a name": CANARY}})
    assert CANARY not in str(caught.value)


def test_complaint_when_many_requests_cause_it_then_it_is_said_once_and_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_logging("info", "json")
    complaint, now = RequestComplaint("away"), [1000.0]
    monkeypatch.setattr("millpond_kernel.observability.time.monotonic", lambda: now[0])
    for at in (1000.0, 1000.1, 1000.9, 1001.0, 1001.5):
        now[0] = at
        complaint.say(path=f"/{at}")
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["path"], each["held_back"]) for each in said] == [("/1000.0", 0), ("/1001.0", 2)]
