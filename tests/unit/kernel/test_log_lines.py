"""What a log line may hold when something unexpected fails."""

import json

import asyncpg
import pytest

from millpond_contracts.bodies.jobs import RunSpec
from millpond_kernel.observability import configure_logging, log

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
