"""The command line's jobs: what is sent, what is shown, how it ends."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from millpond.cli.jobs import show_devices
from millpond_contracts.bodies.allocations import DeviceShare, EndReason, PartitionShare
from millpond_contracts.bodies.groups import GroupSpec
from millpond_contracts.bodies.jobs import JobBatch, JobBatchView, JobSpec, JobState, JobView, LogPage
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.bodies.verdicts import DependencyView, QueueEntry
from millpond_contracts.ids import DeviceId, TaskId
from tests.unit.client.commands import Ran, run
from tests.unit.client.fake_api import FakeApi, page
from tests.unit.client.things import VIRTUAL_POOL, detail, explanation, job, spec, virtual_pool

pytestmark = pytest.mark.unit


@pytest.fixture
def api() -> FakeApi:
    """An API with one virtual pool that takes jobs."""
    return FakeApi().on("GET", "/v1/virtual-pools", page([virtual_pool()])).on("POST", "/v1/jobs", job())


def submitted(api: FakeApi, *arguments: str) -> tuple[Ran, JobSpec]:
    ran = run(api, "submit", *arguments)
    (request,) = api.asked("POST", "/v1/jobs")
    return ran, JobSpec.model_validate_json(request.content)


def only_group(found: JobSpec) -> GroupSpec:
    (group,) = found.groups
    return group


def test_submit_when_only_a_command_is_given_then_modest_defaults(api: FakeApi) -> None:
    ran, sent = submitted(api, "--", "/usr/bin/python3", "-c", "print(1)")
    group = only_group(sent)
    assert (ran.code, sent.name, sent.virtual_pool, sent.priority) == (0, "python3", VIRTUAL_POOL, 50)
    assert (group.resources.cpu_milli, group.resources.memory_mib, group.resources.devices) == (1000, 512, ())
    assert group.run.command == ("/usr/bin/python3", "-c", "print(1)")
    assert "submitted hello" in ran.out
    assert "millpond explain hello" in ran.out


def test_submit_when_everything_is_given_then_everything_is_sent(api: FakeApi) -> None:
    _, sent = submitted(
        api,
        *("--name", "train", "--cpu", "1.5", "--memory", "4GiB", "--gpus", "2", "--gpu-memory", "40GiB"),
        *("--flavor", "h100-sxm", "--flavor", "h200", "--require", "bf16_tflops>=300", "--tolerate", "spot=yes"),
        *("--count", "4", "--priority", "70", "--time-limit", "2h", "--retries", "2", "--env", "A=b=c"),
        *("--label", "team=x", "--image", "python:3.12", "--", "train", "--lr", "0.1"),
    )
    group = only_group(sent)
    (devices,) = group.resources.devices
    assert (devices.kind, devices.count, devices.milli, devices.memory_mib) == ("gpu", 2, 1000, 40_960)
    assert devices.flavors == ("h100-sxm", "h200")
    assert (sent.time_limit_seconds, sent.retry.max, sent.labels, group.count) == (7200, 2, {"team": "x"}, 4)
    assert (group.requires.attributes, group.run.env, group.run.image) == (
        {"bf16_tflops": ">=300"},
        {"A": "b=c"},
        "python:3.12",
    )
    assert (group.tolerations[0].key, group.tolerations[0].value) == ("spot", "yes")
    assert group.run.command == ("train", "--lr", "0.1")


def test_submit_when_places_are_asked_for_then_the_group_requires_them(api: FakeApi) -> None:
    _, sent = submitted(
        api,
        *("--affinity", "rack=r1,r2", "--affinity", "tier!=slow", "--anti-affinity", "node", "--spread", "zone=2"),
        *("--gang", "--pack", "region", "--prefer-pack", "rack", "--", "train"),
    )
    group = only_group(sent)
    assert [(one.label, one.operator, one.values) for one in group.requires.affinity] == [
        ("rack", "in", ("r1", "r2")),
        ("tier", "not_in", ("slow",)),
    ]
    assert [(one.level, one.scope) for one in group.requires.anti_affinity] == [("node", "job")]
    assert [(one.level, one.max_tasks, one.max_skew) for one in group.requires.spread] == [("zone", 2, None)]
    assert (group.requires.pack, group.prefers.pack) == ("region", "rack")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (("--affinity", "rack"), "--affinity: expected LABEL=VALUES"),
        (("--affinity", "rack=r1,,r2"), "--affinity: a value is empty"),
        (("--affinity", "my rack=r1"), "--affinity: label: String should match"),
        (("--spread", "row=2"), "--spread: expected LEVEL=N"),
        (("--spread", "rack=two"), "--spread: expected LEVEL=N"),
        (("--spread", "rack=0"), "--spread: max_tasks: Input should be greater"),
        (("--pack", "rack"), "requires.pack is of gangs"),
    ],
)
def test_submit_when_places_are_asked_for_wrongly_then_names_the_option(
    api: FakeApi, wrong: tuple[str, str], told: str
) -> None:
    ran = run(api, "submit", *wrong, "--", "train")
    assert (ran.code, told in ran.err_words) == (2, True)
    assert "Resources(" not in ran.err


def test_submit_when_a_gang_is_asked_for_then_the_group_says_so(api: FakeApi) -> None:
    _, sent = submitted(api, "--gang", "--count", "4", "--", "train")
    assert (only_group(sent).gang, only_group(sent).count) == (True, 4)


def test_submit_when_the_file_holds_a_list_then_one_batch(api: FakeApi, tmp_path: Path) -> None:
    api.on("POST", "/v1/jobs/batch", JobBatchView(jobs=[job(), job()]))
    document = json.loads(spec().model_dump_json())
    del document["virtual_pool"]
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps([{**document, "name": "one"}, {**document, "name": "two"}]))
    ran = run(api, "submit", "--file", str(file))
    (request,) = api.asked("POST", "/v1/jobs/batch")
    sent = JobBatch.model_validate_json(request.content)
    assert ([each.name for each in sent.jobs], {each.virtual_pool for each in sent.jobs}) == (
        ["one", "two"],
        {VIRTUAL_POOL},
    )
    assert (ran.code, "submitted 2 jobs" in ran.out) == (0, True)
    assert api.asked("POST", "/v1/jobs") == []
    waiting = run(api, "submit", "--file", str(file), "--wait")
    assert (waiting.code, "only a single job" in waiting.err) == (2, True)


def test_submit_when_simulated_then_no_command_is_needed(api: FakeApi) -> None:
    _, sent = submitted(api, "--simulate", "2m")
    group = only_group(sent)
    assert group.run.simulate is not None
    assert (sent.name, group.run.command, group.run.simulate.seconds) == ("simulated", (), 120)


def test_submit_when_a_share_is_asked_for_then_of_one_device(api: FakeApi) -> None:
    _, sent = submitted(api, "--gpu-milli", "250", "--gpu-memory", "8GiB", "--", "infer")
    (devices,) = only_group(sent).resources.devices
    assert (devices.count, devices.milli, devices.memory_mib) == (1, 250, 8192)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "say what to run"),
        (["--simulate", "fast"], "a duration such as"),
        (["--simulate", "5s", "--file", "job.json"], "not both"),
        (["--cpu", "4x", "--", "true"], "found '4x'"),
        (["--memory", "4GB", "--", "true"], "not of 1000"),
        (["--gpus", "1", "--gpu-milli", "500", "--", "true"], "not both"),
        (["--gpus", "1", "--profile", "1g.10gb", "--", "true"], "give it alone"),
        (["--profile", "9g.90gb", "--", "true"], "no model has"),
        (["--require", "bf16_tflops", "--", "true"], "NAME>=N"),
        (["--env", "A", "--", "true"], "KEY=VALUE"),
        (["--name", "NOT OK", "--", "true"], "lower-case letters"),
        (["--priority", "9999", "--", "true"], "1000"),
        (["--file", "nowhere.json"], "cannot read"),
        (["--cpu", "99999999999", "--", "true"], "cpu_milli"),
    ],
)
def test_submit_when_wrong_then_usage_and_nothing_is_sent(api: FakeApi, arguments: list[str], word: str) -> None:
    ran = run(api, "submit", *arguments)
    assert (ran.code, api.asked("POST", "/v1/jobs")) == (2, [])
    assert word in ran.err_words


def test_submit_when_a_file_is_given_then_its_virtual_pool_may_be_a_name(api: FakeApi, tmp_path: Path) -> None:
    document = spec("from-file").model_dump(mode="json") | {"virtual_pool": "main"}
    file = tmp_path / "job.json"
    file.write_text(json.dumps(document))
    ran, sent = submitted(api, "-f", str(file), "-o", "id")
    assert (ran.code, sent.name, sent.virtual_pool) == (0, "from-file", VIRTUAL_POOL)
    assert ran.out.startswith("job_")
    assert len(ran.out.split()) == 1


def test_submit_when_a_job_has_several_groups_then_each_is_told(api: FakeApi, tmp_path: Path) -> None:
    groups = [
        {"name": "lead", "resources": {"cpu_milli": 2000, "memory_mib": 512}, "run": {"command": ["lead"]}},
        {
            "name": "work",
            "count": 3,
            "resources": {"cpu_milli": 1000, "memory_mib": 1024, "devices": [{"count": 2}]},
            "run": {"command": ["work"]},
        },
    ]
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"name": "both", "groups": groups}))
    ran, _ = submitted(api, "-f", str(file))
    told = " ".join(ran.out.split())
    assert "4 tasks with 2 cores and 512 MiB (1 of lead), 1 core and 1 GiB and 2 gpu (3 of work)" in told


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (("--gpus", "2"), "2 gpu"),
        (("--profile", "2g.20gb"), "2g.20gb of a gpu"),
        (("--gpu-milli", "250"), "0.25 of a gpu"),
    ],
)
def test_submit_when_a_part_of_a_device_is_asked_for_then_told_as_such(
    api: FakeApi, wanted: tuple[str, str], told: str
) -> None:
    ran, _ = submitted(api, *wanted, "--", "train")
    assert f"1 task with 1 core and 512 MiB and {told}" in " ".join(ran.out.split())


def test_submit_when_a_file_has_a_surplus_field_then_usage(api: FakeApi, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(spec().model_dump(mode="json") | {"colour": "red", "virtual_pool": "main"}))
    ran = run(api, "submit", "-f", str(file))
    assert (ran.code, "colour" in ran.err) == (2, True)


@pytest.mark.parametrize(("end", "code"), [(JobState.SUCCEEDED, 0), (JobState.FAILED, 1)])
def test_submit_when_waited_for_then_the_exit_code_tells_the_end(api: FakeApi, end: JobState, code: int) -> None:
    view = job(state=end)
    api.on("POST", "/v1/jobs", view).on("GET", f"/v1/jobs/{view.job_id}", detail(view))
    ran = run(api, "submit", "--wait", "--", "true")
    assert (ran.code, f"hello {end.value}" in ran.err) == (code, True)


def holding(*jobs: JobView) -> Callable[[httpx.Request], httpx.Response]:
    """The list of jobs as the scheduler filters and orders it."""

    def answer(request: httpx.Request) -> httpx.Response:
        wanted = request.url.params.get_list("state")
        found = [each for each in jobs if not wanted or each.state in wanted]
        return page(found[::-1] if request.url.params.get("newest_first") == "true" else found)

    return answer


def test_ps_when_jobs_wait_then_shows_what_for(api: FakeApi) -> None:
    waiting, over = job("big", JobState.PENDING), job("small", JobState.FAILED)
    over = over.model_copy(update={"reason": EndReason.OUT_OF_MEMORY})
    waiting = waiting.model_copy(update={"pending_reason": "not_enough_devices"})
    api.on("GET", "/v1/jobs", holding(waiting, over))
    ran = run(api, "ps")
    assert "not enough devices" in next(line for line in ran.out.splitlines() if line.startswith("big"))
    assert "out of memory" in next(line for line in ran.out.splitlines() if line.startswith("small"))


def test_ps_when_many_have_ended_then_the_newest_and_all_that_run(api: FakeApi) -> None:
    running = job("first", JobState.RUNNING)
    ended = [job(f"ended-{number}", JobState.SUCCEEDED) for number in range(30)]
    api.on("GET", "/v1/jobs", holding(running, *ended))
    assert run(api, "ps", "-o", "id").out.split() == [str(each.job_id) for each in (running, *ended[10:])]
    assert len(run(api, "ps", "--all", "-o", "id").out.split()) == 31


def test_ps_when_filtered_then_every_filter_is_asked_for(api: FakeApi) -> None:
    view = job().model_copy(update={"labels": {"team": "a", "stage": "test"}})
    api.on("GET", "/v1/jobs", page([view]))
    ran = run(
        api,
        *("ps", "--state", "running", "--state", "pending", "--label", "team=a", "-l", "stage", "--name", "hello"),
        *("--virtual-pool", "main", "--since", "2h", "--until", "2026-11-30T12:00Z"),
    )
    assert "team=a, stage=test" in ran.out
    params = api.asked("GET", "/v1/jobs")[0].url.params
    assert params.get_list("state") == ["running", "pending"]
    assert params.get_list("label") == ["team=a", "stage"]
    assert (params["name"], params["virtual_pool"]) == ("hello", str(VIRTUAL_POOL))
    ago = datetime.now(UTC) - datetime.fromisoformat(params["since"])
    assert timedelta(hours=2) <= ago < timedelta(hours=3)
    assert datetime.fromisoformat(params["until"]) == datetime(2026, 11, 30, 12, tzinfo=UTC)


def test_ps_when_a_time_cannot_be_read_then_usage(api: FakeApi) -> None:
    ran = run(api, "ps", "--since", "yesterday")
    assert (ran.code, "2026-11-30" in ran.err_words, api.asked("GET", "/v1/jobs")) == (2, True, [])


def test_ps_when_json_is_wanted_then_it_is_what_the_api_said(api: FakeApi) -> None:
    view = job()
    api.on("GET", "/v1/jobs", page([view]))
    assert json.loads(run(api, "ps", "-o", "json").out) == [view.model_dump(mode="json")]


def test_ps_when_there_are_none_then_says_how_to_begin(api: FakeApi) -> None:
    api.on("GET", "/v1/jobs", page([]))
    assert "millpond submit" in run(api, "ps").out


def test_ps_when_the_screen_is_narrow_then_ids_are_left_out(api: FakeApi) -> None:
    view = job()
    api.on("GET", "/v1/jobs", page([view]))
    assert str(view.job_id) in run(api, "ps").out
    assert str(view.job_id)[:12] not in run(api, "ps", columns=70).out


def test_explain_when_it_waits_then_counts_sum_to_the_nodes(api: FakeApi) -> None:
    view = job(state=JobState.PENDING)
    api.on("GET", f"/v1/jobs/{view.job_id}/explain", explanation(view.job_id))
    out = run(api, "explain", str(view.job_id)).out
    assert "limit reached: the virtual pool's limit is reached" in out
    assert "next in its queue" in out
    for line in ("not enough cpu 3", "not ready 1", "all nodes 4", "memory 4 GiB 1 GiB 0 MiB 8 GiB 5 GiB"):
        assert line in "\n".join(" ".join(each.split()) for each in out.splitlines())
    assert "raise the limit of memory: the job would start" in out


def test_explain_when_a_part_waits_for_another_then_says_how_far_that_is(api: FakeApi) -> None:
    view = job(state=JobState.RUNNING)
    waits = DependencyView(group="train", waits_for="prepare", tasks=4, succeeded=1)
    told = explanation(view.job_id).model_copy(update={"dependencies": [waits]})
    api.on("GET", f"/v1/jobs/{view.job_id}/explain", told)
    out = run(api, "explain", str(view.job_id)).out
    assert "train waits for prepare: 1 of 4 tasks succeeded" in " ".join(out.split())


def test_logs_when_read_then_they_are_copied_unchanged(api: FakeApi) -> None:
    view = job()
    text = "loss [red]0.5[/red]\n"
    log = LogPage(task_id=TaskId.new(), attempt=1, offset=0, next_offset=20, text=text, ended=False, cut=False)
    end = log.model_copy(update={"offset": 20, "text": "", "ended": True})
    api.on("GET", "/v1/jobs", page([view])).on("GET", f"/v1/jobs/{view.job_id}/logs", log, end)
    assert run(api, "logs", "hello").out == text


def test_logs_when_a_task_is_named_then_that_one(api: FakeApi) -> None:
    view = job()
    (task,) = detail(view).tasks
    end = LogPage(task_id=task.task_id, attempt=1, offset=0, next_offset=0, text="", ended=True, cut=False)
    api.on("GET", f"/v1/jobs/{view.job_id}/tasks", page([task])).on("GET", f"/v1/jobs/{view.job_id}/logs", end)
    assert run(api, "logs", str(view.job_id), "--task", "main/0").code == 0
    (request,) = api.asked("GET", f"/v1/jobs/{view.job_id}/logs")
    assert dict(request.url.params)["task"] == str(task.task_id)
    assert "it has main/0" in run(api, "logs", str(view.job_id), "--task", "main/7").err_words


def test_cancel_when_called_then_says_so(api: FakeApi) -> None:
    view = job(state=JobState.CANCELLED)
    api.on("POST", f"/v1/jobs/{view.job_id}/cancel", view)
    assert "hello is being ended (cancelled)" in run(api, "cancel", str(view.job_id)).out


def test_queue_when_nothing_waits_then_says_so(api: FakeApi) -> None:
    api.on("GET", f"/v1/queues/{VIRTUAL_POOL}", Page[QueueEntry](items=[]))
    assert run(api, "queue").out.strip() == "nothing waits in main"


@pytest.mark.parametrize(
    ("held", "shown"),
    [
        ([(0, 1000, None)], "h100-sxm #0"),
        ([(3, 1000, None), (0, 1000, None), (1, 1000, None), (6, 1000, None)], "h100-sxm #0-1, 3, 6"),
        ([(2, 250, None)], "h100-sxm #2 at 0.25"),
        ([(1, 250, PartitionShare(profile="2g.20gb", start=4, slices=2))], "h100-sxm #1 2g.20gb at slice 4"),
    ],
)
def test_devices_when_shown_then_whole_ones_by_their_numbers(
    held: list[tuple[int, int, PartitionShare | None]], shown: str
) -> None:
    shares = [
        DeviceShare(
            device_id=DeviceId.new(),
            identity="d",
            vendor="nvidia",
            index=index,
            uuid=None,
            flavor="h100-sxm",
            milli=milli,
            memory_mib=None,
            partition=partition,
        )
        for index, milli, partition in held
    ]
    assert show_devices(shares) == shown
