"""`millpond plan`, and the question that `millpond submit` asks on a terminal."""

import json
from pathlib import Path

import pytest

from millpond.cli.planning import best_in_words, is_asking
from millpond.cli.session import Output
from millpond_contracts.bodies.groups import TaskKind
from millpond_contracts.bodies.jobs import JobSpec
from millpond_contracts.bodies.plans import PlanView
from tests.unit.client.commands import run
from tests.unit.client.fake_api import FakeApi, page
from tests.unit.client.things import job, offer, plan, spec, virtual_pool

pytestmark = pytest.mark.unit


def api_with(told: PlanView) -> FakeApi:
    api = FakeApi().on("GET", "/v1/virtual-pools", page([virtual_pool()])).on("POST", "/v1/jobs", job())
    return api.on("POST", "/v1/plans", told)


def test_plan_when_there_are_offers_then_a_table_with_prices_and_distances() -> None:
    api = api_with(plan(offer(), offer("h100", per_hour="30")))
    ran = run(api, "plan", "--gpus", "1", "--count", "2", "--time-limit", "30m", "--", "python3", "train.py")
    first, second = (line for line in ran.out.splitlines() if "2 of 2" in line)
    assert ("a100" in first, "18.396 CNY" in first, "9.198 CNY" in first, "0.9 %" in first) == (True,) * 4
    assert ("h100" in second, "30.00 CNY" in second) == (True, True)
    assert "device/a100/on_demand" in ran.out
    assert ("bf16 tflops" in ran.out, "300" in ran.out, "312" in ran.out) == (True, True, True)
    assert "nothing is held" in ran.out
    (request,) = api.asked("POST", "/v1/plans")
    sent = JobSpec.model_validate_json(request.content)
    assert (sent.groups[0].count, sent.time_limit_seconds) == (2, 1800)
    assert api.asked("POST", "/v1/jobs") == []


def test_plan_when_there_is_none_then_the_reason_and_what_would_help() -> None:
    ran = run(api_with(plan(waits=True)), "plan", "--", "true")
    assert ran.code == 0
    assert "it would wait" in ran.out
    assert "no matching node has enough free devices" in ran.out
    assert "all nodes" in ran.out


def test_plan_when_only_a_part_starts_then_both_are_shown() -> None:
    ran = run(api_with(plan(offer(starts=1), waits=True)), "plan", "--", "true")
    assert ("1 of 2" in ran.out, "why the others would wait" in ran.out) == (True, True)


def test_plan_when_a_part_comes_after_another_then_says_so() -> None:
    whole = offer()
    later = whole.parts[0].model_copy(update={"group": "train", "after": ["prepare"]})
    told = plan(whole.model_copy(update={"parts": [*whole.parts, later], "tasks": 4}))
    ran = run(api_with(told), "plan", "--", "true")
    assert ("2 of 4" in ran.out, "train starts after prepare" in ran.out) == (True, True)


def test_plan_when_a_program_asks_then_json_or_flavors() -> None:
    told = plan(offer(), offer("h100"))
    assert json.loads(run(api_with(told), "plan", "-o", "json", "--", "true").out) == told.model_dump(mode="json")
    assert run(api_with(told), "plan", "-o", "id", "--", "true").out.split() == ["a100", "h100"]


def test_plan_when_a_kind_of_task_is_said_then_it_is_sent() -> None:
    api = api_with(plan(offer()))
    run(api, "plan", "--task-kind", "training", "--", "true")
    (request,) = api.asked("POST", "/v1/plans")
    assert JobSpec.model_validate_json(request.content).groups[0].prefers.task_kind is TaskKind.TRAINING


@pytest.mark.parametrize("how", [("{file}",), ("-f", "{file}")])
def test_plan_when_a_file_is_named_then_its_job_is_planned(tmp_path: Path, how: tuple[str, ...]) -> None:
    file = tmp_path / "job.json"
    file.write_text(spec("from-a-file").model_dump_json(exclude={"virtual_pool"}))
    api = api_with(plan(offer()))
    ran = run(api, "plan", *(word.format(file=file) for word in how))
    (request,) = api.asked("POST", "/v1/plans")
    assert (ran.code, JobSpec.model_validate_json(request.content).name) == (0, "from-a-file")


def test_submit_when_no_terminal_is_there_then_nobody_is_asked() -> None:
    api = api_with(plan(offer()))
    assert run(api, "submit", "--", "true").code == 0
    assert (len(api.asked("POST", "/v1/plans")), len(api.asked("POST", "/v1/jobs"))) == (0, 1)
    assert not is_asking(Output.TABLE, yes=False)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            plan(offer()),
            "2 of 2 tasks would start now on 1 node with a100 for 18.396 CNY an hour (9.198 CNY at its time limit)",
        ),
        (plan(offer(None, total=None)), "2 of 2 tasks would start now on 1 node for 18.396 CNY an hour"),
        (plan(waits=True), "it would wait: no matching node has enough free devices"),
    ],
)
def test_best_when_said_in_one_line_then_what_a_person_decides_by(told: PlanView, said: str) -> None:
    assert best_in_words(told) == said
