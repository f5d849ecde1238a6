"""HTTP behaviour as readable scripts: every `*.yaml` beside this file, run against all services."""

from pathlib import Path

import pytest

from tests.integration.services import Services
from tests.scenarios.runner import Scenario

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

FILES = sorted(Path(__file__).parent.glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_scenario_when_run_then_every_answer_is_as_written(services: Services, file: Path) -> None:
    assert await Scenario(services, file.stem).run(file.read_text(encoding="utf-8")) > 0
