"""Submitting, waiting for and reading jobs through the client."""

import json

import pytest

from millpond.client.errors import NotFound, WaitTimeout
from millpond_contracts.bodies.groups import TaskKind
from millpond_contracts.bodies.jobs import JobSpec, JobState, LogPage
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import TaskId
from tests.unit.client.fake_api import FakeApi, page, problem
from tests.unit.client.things import VIRTUAL_POOL, detail, job, offer, plan, virtual_pool

pytestmark = pytest.mark.unit

TASK = TaskId.new()


def log_page(offset: int, text: str, *, ended: bool) -> LogPage:
    return LogPage(
        task_id=TASK, attempt=1, offset=offset, next_offset=offset + len(text), text=text, ended=ended, cut=False
    )


def test_submit_when_called_then_sends_one_group_in_api_units() -> None:
    api = FakeApi().on("GET", "/v1/virtual-pools", page([virtual_pool()])).on("POST", "/v1/jobs", job())
    api.client().submit(["echo", "hi"], cpu_milli=500, memory_mib=256, count=3, env={"A": "1"}, priority=70)
    (request,) = api.asked("POST", "/v1/jobs")
    body = json.loads(request.content)
    assert (body["virtual_pool"], body["priority"], body["name"]) == (str(VIRTUAL_POOL), 70, "job")
    (group,) = body["groups"]
    assert group["resources"] == {"cpu_milli": 500, "memory_mib": 256, "devices": []}
    assert (group["count"], group["run"]) == (3, {"command": ["echo", "hi"], "env": {"A": "1"}})


def test_wait_when_the_job_ends_then_looks_until_then() -> None:
    running = job(state=JobState.RUNNING)
    ended = running.model_copy(update={"state": JobState.SUCCEEDED})
    api = FakeApi().on("GET", f"/v1/jobs/{running.job_id}", detail(running), detail(running), detail(ended))
    seen: list[JobState] = []
    found = api.client().jobs.wait(running, on_look=lambda each: seen.append(each.state))
    assert found.state is JobState.SUCCEEDED
    assert seen == [JobState.RUNNING, JobState.RUNNING, JobState.SUCCEEDED]
    assert api.slept == [0.5, 0.5]


def test_wait_when_time_is_up_then_says_that_it_goes_on() -> None:
    running = job()
    api = FakeApi().on("GET", f"/v1/jobs/{running.job_id}", detail(running))
    with pytest.raises(WaitTimeout, match="still running after 0 s; it goes on"):
        api.client().wait(running, timeout_seconds=0)


def test_logs_when_they_have_pages_then_all_are_joined() -> None:
    view = job()
    pages = [log_page(0, "one\n", ended=False), log_page(4, "two\n", ended=False), log_page(8, "", ended=False)]
    api = FakeApi().on("GET", f"/v1/jobs/{view.job_id}/logs", *pages)
    assert api.client().logs(view) == "one\ntwo\n"
    assert [dict(each.url.params)["offset"] for each in api.requests] == ["0", "4", "8"]


def test_logs_when_followed_then_until_the_log_has_ended() -> None:
    view = job()
    missing = problem(ErrorCode.TASK_NOT_FOUND, "no attempt yet")
    pages = [log_page(0, "", ended=False), log_page(0, "one\n", ended=False), log_page(4, "", ended=True)]
    api = (
        FakeApi()
        .on("GET", f"/v1/jobs/{view.job_id}/logs", missing, *pages)
        .on("GET", f"/v1/jobs/{view.job_id}", detail(view))
    )
    assert list(api.client().jobs.read_log(view, follow=True)) == ["one\n"]
    assert api.slept == [0.3, 0.3]


def test_logs_when_the_job_ended_without_ever_starting_then_following_ends() -> None:
    view = job(state=JobState.CANCELLED)
    api = FakeApi().on("GET", f"/v1/jobs/{view.job_id}/logs", problem(ErrorCode.TASK_NOT_FOUND, "no attempt"))
    api.on("GET", f"/v1/jobs/{view.job_id}", detail(view))
    assert list(api.client().jobs.read_log(view, follow=True)) == []


def test_logs_when_the_job_is_unknown_then_refused() -> None:
    view = job()
    api = FakeApi().on("GET", f"/v1/jobs/{view.job_id}/logs", problem(ErrorCode.JOB_NOT_FOUND, "no such job"))
    with pytest.raises(NotFound, match="no such job"):
        api.client().logs(view)


def test_plan_when_asked_then_the_job_is_described_and_offers_come_back() -> None:
    told = plan(offer(), offer("h100"))
    api = FakeApi().on("GET", "/v1/virtual-pools", page([virtual_pool()])).on("POST", "/v1/plans", told)
    found = api.client().plan(
        ["python3", "train.py"], cpu_milli=1000, memory_mib=512, count=2, gang=True, task_kind=TaskKind.TRAINING
    )
    assert found == told
    (request,) = api.asked("POST", "/v1/plans")
    sent = JobSpec.model_validate_json(request.content)
    (group,) = sent.groups
    assert (sent.virtual_pool, group.count, group.gang) == (VIRTUAL_POOL, 2, True)
    assert group.prefers.task_kind is TaskKind.TRAINING
    assert group.run.command == ("python3", "train.py")
