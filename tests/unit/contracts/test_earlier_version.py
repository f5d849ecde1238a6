"""The present contracts beside those of an earlier version: its rows are read, and nothing that it knew is gone."""

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from millpond_contracts.events import EVENT_TYPES
from tests.architecture.tree import ROOT
from tests.earlier import DATA, DOCUMENTS
from tests.earlier.surface import events_that_break, operations_that_break

pytestmark = pytest.mark.unit

ROWS = [json.loads(line) for line in (DATA / "outbox.jsonl").read_text(encoding="utf-8").splitlines()]
EARLIER = {name: json.loads((DATA / f"{name}.json").read_text(encoding="utf-8")) for name in DOCUMENTS}

# What changed although it was promised: pattern -> reason. A new line needs a better one than "nobody uses it".
ACCEPTED = {
    r"get /v1/charges/sums label(\[\])?: .*": "one shape of labels in all lists; what is refused never matched",
    r"get /v1/charges/sums group_by: maxItems None became 16": "more groups than there are ways to group",
    r".*\.ecosystem\.(frameworks|\w+_libraries): maxProperties None became 256": "a bound that no machine comes near",
    r"(post|put) /v1/pools.* body\.reference_task_milli: .*": "with 0 a pool's capacity could not be told at all",
    r".*\.devices\[\]\.fields\[\]\.value: maxLength None became 4096": "a bound that no machine comes near",
    r".*[.](last_)?reason: may now be \['dependency_failed', 'moved'\]": "only of a task whose job says `after`, or "
    "that is moved, which HTTP processes of this version alone accept, after the workers (decisions 122, 123)",
    r".*[.]state: may now be \['blocked'\]": "likewise",
    r".*virtual.pool.*policy: may now be \['fair_share', 'shortest_job_first'\]": "only where somebody chose it, "
    "through an HTTP process of this version, which starts after the workers (docs/upgrading.md)",
}


def _present(name: str) -> Any:
    return json.loads((ROOT / "openapi" / f"{name}.json").read_text(encoding="utf-8"))


def _breaks(name: str, earlier: Any, later: Any) -> set[str]:
    compare = events_that_break if name == "events" else operations_that_break
    return set(compare(earlier, later))


def test_rows_when_kept_then_there_is_one_of_each_event_type_of_that_version() -> None:
    assert sorted(row["type"] for row in ROWS) == sorted(EARLIER["events"]["events"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["type"])
def test_row_of_an_earlier_outbox_when_read_then_nothing_of_it_is_lost(row: Any) -> None:
    event = EVENT_TYPES[row["type"]].model_validate(row["body"])
    tenant = event.tenant()
    assert event.subject() == row["subject"]
    assert event.generation_of() == row["generation"]
    assert (None if tenant is None else str(tenant)) == row["tenant_id"]
    assert _lost(row["body"], json.loads(event.model_dump_json()), row["type"]) == []


def _lost(was: Any, now: Any, where: str) -> list[str]:
    if isinstance(was, dict) and isinstance(now, dict):
        return [line for key, value in was.items() for line in _lost(value, now.get(key, "absent"), f"{where}.{key}")]
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return [line for old, new in zip(was, now, strict=True) for line in _lost(old, new, f"{where}[]")]
    return [] if was == now else [f"{where}: {was!r} became {now!r}"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_interface_when_compared_with_the_earlier_one_then_nothing_breaks_who_was_written_for_it(name: str) -> None:
    found = _breaks(name, EARLIER[name], _present(name))
    assert [line for line in found if not any(re.fullmatch(accepted, line) for accepted in ACCEPTED)] == []


def test_accepted_changes_when_listed_then_each_is_there() -> None:
    found = set().union(*(_breaks(name, EARLIER[name], _present(name)) for name in DOCUMENTS))
    assert [accepted for accepted in ACCEPTED if not any(re.fullmatch(accepted, line) for line in found)] == []


def _without_event(document: Any) -> str:
    del document["events"]["scheduler.allocation_bound.v1"]
    return "scheduler.allocation_bound.v1: is gone"


def _without_field(document: Any) -> str:
    del document["$defs"]["AllocationView"]["properties"]["bound_at"]
    return "scheduler.allocation_activated.v1.allocation.bound_at: is gone"


def _with_required_field(document: Any) -> str:
    document["$defs"]["AllocationView"]["required"].append("since_version_9")
    return "scheduler.allocation_activated.v1.allocation.since_version_9: became required"


def _with_new_value(document: Any) -> str:
    document["$defs"]["JobState"]["enum"].append("paused")
    return "scheduler.job_state_changed.v1.job.state: may now be ['paused']"


def _with_null(document: Any) -> str:
    fields = document["$defs"]["AllocationView"]["properties"]
    fields["bound_at"] = {"anyOf": [fields["bound_at"], {"type": "null"}]}
    return "scheduler.allocation_activated.v1.allocation.bound_at: may now be null"


@pytest.mark.parametrize("change", [_without_event, _without_field, _with_required_field, _with_new_value, _with_null])
def test_events_when_one_breaks_a_reader_then_the_comparison_says_which(change: Callable[[Any], str]) -> None:
    later = copy.deepcopy(EARLIER["events"])
    assert change(later) in _breaks("events", EARLIER["events"], later)


def _without_operation(document: Any) -> str:
    del document["paths"]["/v1/jobs"]["post"]
    return "post /v1/jobs: is gone"


def _with_required_parameter(document: Any) -> str:
    wanted = {"name": "zone", "in": "query", "required": True, "schema": {"type": "string"}}
    document["paths"]["/v1/jobs"]["get"]["parameters"].append(wanted)
    return "get /v1/jobs zone: became required"


def _with_smaller_bound(document: Any) -> str:
    (limit,) = [one for one in document["paths"]["/v1/jobs"]["get"]["parameters"] if one["name"] == "limit"]
    limit["schema"]["maximum"] = 100
    return "get /v1/jobs limit: maximum 200 became 100"


def _with_answer_that_may_lack_a_field(document: Any) -> str:
    document["components"]["schemas"]["JobView"]["required"].remove("state")
    return "get /v1/jobs 200.items[].state: is no longer certain"


@pytest.mark.parametrize(
    "change",
    [_without_operation, _with_required_parameter, _with_smaller_bound, _with_answer_that_may_lack_a_field],
)
def test_operations_when_one_breaks_a_caller_then_the_comparison_says_which(change: Callable[[Any], str]) -> None:
    later = copy.deepcopy(EARLIER["scheduler"])
    assert change(later) in _breaks("scheduler", EARLIER["scheduler"], later)
