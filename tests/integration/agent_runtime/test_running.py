"""Tasks that run to their own end: what they see, what they leave, how they are refused."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from millpond_node_agent.runtimes.process import ProcessRuntime, ProcessSettings, UnreachableWorkFolder
from millpond_node_agent.runtimes.protocol import DeviceGrant, RefusalCode, RefusedTask, RunNotFound, TaskState
from tests.integration.agent_runtime.task_runs import MakeSpec, is_running, launch, log_text, run_to_end, wait_for_text

pytestmark = pytest.mark.integration
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give tasks users of their own")


async def test_run_when_command_ends_then_exit_code_log_and_instants_are_known(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    status, log = await run_to_end(runtime, make_spec("echo out; echo err >&2; exit 3"))

    assert (status.state, status.exit_code, status.signal, status.stop_reason) == (TaskState.EXITED, 3, None, None)
    assert log == "out\nerr\n"
    instants = [
        status.started_monotonic_ms,
        status.active_monotonic_ms,
        status.ended_monotonic_ms,
        status.empty_monotonic_ms,
    ]
    known = [instant for instant in instants if instant is not None]
    assert len(known) == 4
    assert known == sorted(known)


async def test_run_when_killed_by_a_signal_then_the_signal_is_named(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    status, _ = await run_to_end(runtime, make_spec("kill -9 $$"))

    assert (status.exit_code, status.signal, status.oom_killed) == (None, 9, False)


@pytest.mark.parametrize(("command", "code"), [(("no-such-program", "x"), 127), (("/etc/passwd",), 126)])
async def test_run_when_command_cannot_start_then_exit_says_so_and_was_never_active(
    runtime: ProcessRuntime, make_spec: MakeSpec, command: tuple[str, ...], code: int
) -> None:
    spec = make_spec(command=command)
    status = await launch(runtime, spec)
    status = status if status.state is TaskState.EXITED else (await run_to_end(runtime, spec))[0]

    assert (status.exit_code, status.active_monotonic_ms) == (code, None)
    # The log is the tenant's own; the message becomes an event, which tells nothing of the command.
    assert (status.message or "").startswith("cannot start the command's program: ")
    assert command[0] not in (status.message or "")
    assert f"millpond: cannot start '{command[0]}'" in await log_text(runtime, spec.allocation_id)


async def test_environment_when_task_runs_then_it_holds_the_contract_and_nothing_of_the_agent(
    runtime: ProcessRuntime, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_SECRET", "leaked")
    _, log = await run_to_end(runtime, make_spec("env; pwd; umask", env={"MINE": "yes", "CUDA_VISIBLE_DEVICES": "0"}))

    lines = log.splitlines()
    env = dict(line.split("=", 1) for line in lines[:-2])
    assert "AGENT_SECRET" not in env
    assert env["MINE"] == "yes"
    assert env["CUDA_VISIBLE_DEVICES"] == "-1"
    assert (env["MILLPOND_JOB_ID"], env["MILLPOND_ATTEMPT"], env["MILLPOND_GRACE_S"]) == ("job_1", "1", "1")
    assert env["HOME"] == lines[-2]
    assert lines[-1] == "0077"


async def test_environment_when_device_is_granted_then_only_it_is_visible(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    grant = DeviceGrant("nvidia/GPU-1", "nvidia", 1, "GPU-1", 1000, None)
    _, log = await run_to_end(
        runtime, make_spec("echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $HIP_VISIBLE_DEVICES", devices=(grant,))
    )

    assert log == "GPU-1 PCI_BUS_ID -1\n"


async def test_run_when_main_process_ends_then_daemons_it_left_are_gone_before_it_counts_as_exited(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    status, log = await run_to_end(runtime, make_spec("(setsid sleep 300 & echo $!); exit 0"))

    assert status.exit_code == 0
    assert not is_running(int(log))


async def test_start_when_repeated_then_nothing_runs_twice(runtime: ProcessRuntime, make_spec: MakeSpec) -> None:
    spec = make_spec("echo once; sleep 300")
    first = await launch(runtime, spec)
    await runtime.prepare(spec)
    second = await runtime.start(spec)

    assert second.pid == first.pid
    assert await wait_for_text(runtime, spec.allocation_id, "once") == "once\n"


async def test_prepare_when_an_image_is_asked_for_then_it_is_refused_and_nothing_is_left(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    spec = make_spec(image="docker.io/library/alpine")
    with pytest.raises(RefusedTask) as refusal:
        await runtime.prepare(spec)

    assert refusal.value.code is RefusalCode.IMAGE_WITHOUT_RUNTIME
    assert await runtime.list_runs() == []
    with pytest.raises(RunNotFound):
        await runtime.status(spec.allocation_id)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"command": ("",)}, RefusalCode.BAD_COMMAND),
        ({"command": ("a\0b",)}, RefusalCode.BAD_COMMAND),
        ({"allocation_id": "../escape"}, RefusalCode.BAD_IDENTITY),
        ({"env": {"MILLPOND_JOB_ID": "x"}}, RefusalCode.BAD_ENVIRONMENT),
        ({"env": {"A=B": "x"}}, RefusalCode.BAD_ENVIRONMENT),
        ({"memory_mib": -1}, RefusalCode.BAD_LIMITS),
        ({"devices": (DeviceGrant("x/0", "nobody-knows", 0, None, 1000, None),)}, RefusalCode.UNKNOWN_DEVICE),
    ],
)
async def test_prepare_when_the_task_is_malformed_then_the_code_says_why(
    runtime: ProcessRuntime, make_spec: MakeSpec, changes: dict[str, object], code: RefusalCode
) -> None:
    with pytest.raises(RefusedTask) as refusal:
        await runtime.prepare(make_spec(**changes))

    assert refusal.value.code is code


async def test_prepare_when_the_disk_is_nearly_full_then_it_is_refused(place: Path, make_spec: MakeSpec) -> None:
    everything = shutil.disk_usage(place).total >> 20
    runtime = ProcessRuntime(ProcessSettings(place / "s", place / "w", minimum_free_mib=everything))
    with pytest.raises(RefusedTask) as refusal:
        await runtime.prepare(make_spec())

    assert refusal.value.code is RefusalCode.NO_SPACE


async def test_remove_when_run_ended_then_no_folder_is_left(
    runtime: ProcessRuntime, settings: ProcessSettings, make_spec: MakeSpec
) -> None:
    spec = make_spec("mkdir -p closed/inner && touch closed/inner/file && chmod 0 closed")
    await run_to_end(runtime, spec)
    await runtime.remove(spec.allocation_id)

    assert list((settings.state_dir / "runs").iterdir()) == []
    assert list(settings.work_dir.iterdir()) == []


async def test_log_when_a_task_prints_without_end_then_head_and_tail_stay_within_the_bound(
    runtime: ProcessRuntime, settings: ProcessSettings, make_spec: MakeSpec
) -> None:
    size = 80_000_000
    spec = make_spec(f"head -c {size} /dev/zero | tr '\\0' x; echo; echo end")
    await run_to_end(runtime, spec)
    left = await runtime.collect(spec.allocation_id)
    kept = sum(path.stat().st_size for path in (settings.state_dir / "runs" / spec.allocation_id).glob("log*"))

    assert left.log_bytes == size + 5
    assert left.log_cut_bytes == left.log_bytes - kept > 0
    assert kept <= 64 * 1024 * 1024
    after_head = await runtime.read_log(spec.allocation_id, 32 * 1024 * 1024, 10)
    assert (after_head.cut, after_head.data) == (True, b"x" * 10)
    assert (await runtime.read_log(spec.allocation_id, size - 1, 100)).data == b"x\nend\n"


async def test_start_when_the_launcher_cannot_run_then_it_is_refused_and_can_be_cleaned_up(
    place: Path, make_spec: MakeSpec
) -> None:
    runtime = ProcessRuntime(ProcessSettings(place / "s", place / "w", python="/bin/false"))
    spec = make_spec()
    await runtime.prepare(spec)
    with pytest.raises(RefusedTask) as refusal:
        await runtime.start(spec)
    await runtime.stop(spec.allocation_id, 0)
    await runtime.remove(spec.allocation_id)

    assert refusal.value.code is RefusalCode.START_FAILED
    assert await runtime.list_runs() == []


async def test_runtime_when_an_agent_died_while_preparing_then_its_remains_are_swept(
    runtime: ProcessRuntime, settings: ProcessSettings, make_spec: MakeSpec
) -> None:
    spec = make_spec()
    await runtime.prepare(spec)
    (settings.state_dir / "runs" / spec.allocation_id / "run.json").unlink()
    ProcessRuntime(settings)

    assert list((settings.state_dir / "runs").iterdir()) == []
    assert list(settings.work_dir.iterdir()) == []


async def test_start_when_many_tasks_start_at_once_then_each_runs_as_itself(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    specs = [make_spec("echo $MILLPOND_ALLOCATION_ID", allocation_id=f"many-{number}") for number in range(8)]
    await asyncio.gather(*(run_to_end(runtime, spec) for spec in specs))

    assert [await log_text(runtime, spec.allocation_id) for spec in specs] == [f"many-{n}\n" for n in range(8)]


@as_root
async def test_users_when_two_tasks_run_then_each_is_unprivileged_and_sees_nothing_of_the_other_or_of_the_agent(
    runtime: ProcessRuntime, settings: ProcessSettings, make_spec: MakeSpec
) -> None:
    key = settings.state_dir / "key"
    key.write_text("secret")
    first, second = make_spec("id -u; sleep 300", allocation_id="one"), None
    await launch(runtime, first)
    first_uid = await wait_for_text(runtime, "one", "\n")
    hidden = not any("command lines" in warning for warning in runtime.report().warnings)
    script = (
        f"id -u; id -G; grep NoNewPrivs /proc/self/status; "
        f"ls {settings.work_dir}/one; cat {key}; ls {settings.state_dir}; ls {settings.work_dir}; kill -0 1; "
        "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 300'; true"
    )
    second = make_spec(script, allocation_id="two")
    _, log = await run_to_end(runtime, second)

    lines = log.splitlines()
    assert lines[0] == lines[1] != first_uid.strip()
    assert min(int(lines[0]), int(first_uid)) > 60_000
    assert lines[2].split() == ["NoNewPrivs:", "1"]
    assert len([line for line in lines if "ermi" in line]) == 5, log
    assert "secret" not in log
    if hidden:
        assert lines[-1] == "0", log


@as_root
def test_runtime_when_task_users_cannot_reach_the_work_folder_then_it_says_which_folder_is_closed(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(UnreachableWorkFolder, match="closed"):
        ProcessRuntime(ProcessSettings(place / "state", closed / "work"))
