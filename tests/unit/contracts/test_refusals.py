"""What is said of a value that is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from millpond_contracts.bodies.jobs import JobSpec
from millpond_contracts.refusals import name_faults

pytestmark = pytest.mark.unit

JOB: dict[str, Any] = {"name": "a", "virtual_pool": "vpool_01m8pbz7dsf2aafj1g0t06yy8w"}


@pytest.mark.parametrize(
    ("groups", "faults"),
    [
        ([], [("too_short", ("groups",))]),
        ([{"run": {"command": ["true"]}}], [("missing", ("groups", 0, "resources"))]),
    ],
)
def test_faults_when_told_then_none_follows_from_another(
    groups: list[object], faults: list[tuple[str, tuple[object, ...]]]
) -> None:
    with pytest.raises(ValidationError) as refused:
        JobSpec.model_validate(JOB | {"groups": groups})
    assert [(fault["type"], fault["loc"]) for fault in name_faults(refused.value.errors())] == faults
