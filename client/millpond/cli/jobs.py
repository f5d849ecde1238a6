"""Your jobs: `ps`, `job`, `explain`, `cancel`, `queue`. Submitting and logs have files of their own."""

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from millpond.cli.amounts import (
    parse_instant,
    show_age,
    show_amount,
    show_count,
    show_mib,
    show_milli,
    show_seconds,
    show_share,
    show_time,
)
from millpond.cli.completing import complete_jobs, complete_projects, complete_tenants, complete_virtual_pools
from millpond.cli.move_plans import explain_moves
from millpond.cli.rendering import (
    Column,
    field_grid,
    fitting_table,
    heading,
    make_table,
    past,
    show_done,
    show_json,
    show_labels,
    show_list,
    show_one,
    state,
    words,
)
from millpond.cli.session import JOBS, LabelFilter, Output, OutputOption, SinceOption, UntilOption, connect, out
from millpond.client.jobs import FINAL
from millpond_contracts.bodies.allocations import DeviceShare
from millpond_contracts.bodies.groups import Resources
from millpond_contracts.bodies.jobs import JobDetail, JobState, JobView, TaskView
from millpond_contracts.bodies.verdicts import AdmissionView, Explanation, PlacedView, QueueEntry, Verdict

_RECENT = 20
_LOOKED_AT = 200
_WATCH_SECONDS = 1.0

JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="Its name (the newest of that name) or its id.", autocompletion=complete_jobs),
]


def ps(
    context: typer.Context,
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Also those that ended long ago.")] = False,
    state_: Annotated[
        list[JobState] | None, typer.Option("--state", help="Only jobs in this state; may be repeated.")
    ] = None,
    label: LabelFilter = None,
    name: Annotated[str | None, typer.Option(help="Only jobs of this name.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Only this tenant's (name or id).", autocompletion=complete_tenants)
    ] = None,
    project: Annotated[
        str | None, typer.Option(help="Only this project's (name or id).", autocompletion=complete_projects)
    ] = None,
    virtual_pool: Annotated[
        str | None, typer.Option(help="Only this virtual pool's (name or id).", autocompletion=complete_virtual_pools)
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep the table on the screen and up to date.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List jobs: what they do, and what they wait for.

    All that have not ended and the newest that have; --state, --since, --until and --all leave none out.
    """
    client = connect(context)
    tenant_id = None if tenant is None else client.tenants.id_of(tenant)
    find_jobs = partial(
        client.jobs.list,
        virtual_pool=None
        if virtual_pool is None
        else client.virtual_pools.get(virtual_pool, tenant_id=tenant_id).virtual_pool_id,
        tenant_id=tenant_id,
        project=None if project is None else client.projects.get(project, tenant_id=tenant_id).project_id,
        label=tuple(label or ()),
        name=name,
        since=None if since is None else parse_instant(since, "--since"),
        until=None if until is None else parse_instant(until, "--until"),
    )
    is_whole = show_all or bool(state_ or since or until)

    def find() -> list[JobView]:
        return list(find_jobs(state=tuple(state_ or ()))) if is_whole else recent_jobs(find_jobs)

    if watch and output is Output.TABLE:
        _watch(find)
    else:
        empty = "no such jobs" if is_whole or label or name else "no jobs yet; `millpond submit -- COMMAND` starts one"
        show_list(output, find(), JOB_COLUMNS, lambda job: job.job_id, empty=empty)


def _watch(find: Callable[[], list[JobView]]) -> None:
    console = out()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(fitting_table(console, find(), JOB_COLUMNS), refresh=True)
            time.sleep(_WATCH_SECONDS)


def recent_jobs(find_jobs: Callable[..., Iterator[JobView]]) -> list[JobView]:
    """All jobs that have not ended, and the newest of those that have, oldest first."""
    newest = islice(find_jobs(newest_first=True), _LOOKED_AT)
    ended = list(islice((job for job in newest if job.state in FINAL), _RECENT))
    unfinished = find_jobs(state=(JobState.PENDING, JobState.RUNNING))
    found = {job.job_id: job for job in (*ended, *unfinished)}
    return [found[job_id] for job_id in sorted(found)]


def _why(job: JobView) -> str:
    if job.pending_reason:
        return words(job.pending_reason)
    return "-" if job.state is JobState.SUCCEEDED else words(job.reason) if job.reason else job.message or "-"


def _tasks_by_state(job: JobView) -> str:
    by_state: dict[str, int] = {}
    for group in job.groups:
        for name, count in group.by_state.items():
            by_state[name] = by_state.get(name, 0) + count
    return ", ".join(f"{count} {name}" for name, count in by_state.items() if count)


JOB_COLUMNS: list[Column[JobView]] = [
    Column("name", lambda job: job.name),
    Column("state", lambda job: state(job.state)),
    Column("since", lambda job: show_age(job.state_since), is_right=True),
    Column("tasks", _tasks_by_state),
    Column("why", _why),
    Column("age", lambda job: show_age(job.created_at), is_right=True),
    Column("labels", lambda job: show_labels(job.labels), is_extra=True),
    Column("id", lambda job: str(job.job_id), is_extra=True),
]


def show_job(context: typer.Context, job: JobArgument, output: OutputOption = Output.TABLE) -> None:
    """Show one job: what it asked for, its tasks and their ends."""
    client = connect(context)
    detail = client.jobs.get(job)
    show_one(output, detail, detail.job_id, job_fields(detail))
    if output is Output.TABLE:
        heading(out(), "tasks")
        console = out()
        console.print(fitting_table(console, detail.tasks, _TASK_COLUMNS))


def job_fields(job: JobDetail) -> list[tuple[str, RenderableType]]:
    """A job as names and values."""
    fields: list[tuple[str, RenderableType]] = [
        ("name", job.name),
        ("id", str(job.job_id)),
        ("state", past(job.state, show_age(job.state_since))),
    ]
    if job.reason or job.message:
        fields.append(("why", job.message or words(job.reason)))
    fields += [
        ("virtual pool", str(job.virtual_pool_id)),
        ("priority", str(job.priority)),
        ("submitted", show_time(job.created_at)),
    ]
    if job.started_at is not None:
        fields.append(("started", show_time(job.started_at)))
    if job.ended_at is not None:
        fields.append(("ended", show_time(job.ended_at)))
    if job.spec.time_limit_seconds is not None:
        fields.append(("time limit", show_seconds(job.spec.time_limit_seconds)))
    for group in job.spec.groups:
        fields.append((f"group {group.name}", f"{group.count} x {show_resources(group.resources)}"))
        if group.after:
            fields.append(("after", ", ".join(group.after)))
        if group.run.simulate is not None:
            fields.append(("simulated", f"{group.run.simulate.seconds:g} s, exit code {group.run.simulate.exit_code}"))
        if group.run.command:
            fields.append(("command", _command(group.run.command)))
    if job.labels:
        fields.append(("labels", show_labels(job.labels)))
    return fields


def _command(command: tuple[str, ...]) -> str:
    # One word needs no quotes; that is also how the API says that the command is not for these eyes.
    return command[0] if len(command) == 1 else shlex.join(command)


def show_resources(resources: Resources) -> str:
    """What one task holds: `1 core, 512 MiB, 2 gpu`."""
    parts = [show_amount("cpu", resources.cpu_milli), show_mib(resources.memory_mib)]
    for device in resources.devices:
        share = "" if device.milli == 1000 else f" at {show_milli(device.milli)}"
        if device.profile is not None:
            share = f" partition {device.profile}"
        memory = "" if device.memory_mib is None else f" with {show_mib(device.memory_mib)}"
        flavors = "" if not device.flavors else f" ({' or '.join(device.flavors)})"
        parts.append(f"{device.count} {device.kind}{share}{memory}{flavors}")
    return ", ".join(parts)


def _held_seconds(task: TaskView) -> str:
    allocation = task.allocation
    if allocation is None or allocation.active_at is None:
        return "-"
    if allocation.released_at is None:
        return show_age(allocation.active_at)
    return show_seconds((allocation.released_at - allocation.active_at).total_seconds())


def _devices(task: TaskView) -> str:
    if task.allocation is None or not task.allocation.devices:
        return "-"
    return show_devices(task.allocation.devices)


def show_devices(shares: Sequence[DeviceShare]) -> str:
    """What a task holds of devices; whole ones of a flavor by their numbers: `h100-sxm #0-3, 6`."""
    whole: dict[str, list[int]] = {}
    parts = []
    for share in shares:
        if share.partition is not None:
            parts.append(f"{share.flavor} #{share.index} {share.partition.profile} at slice {share.partition.start}")
        elif share.milli != 1000:
            parts.append(f"{share.flavor} #{share.index} at {show_milli(share.milli)}")
        else:
            whole.setdefault(share.flavor, []).append(share.index)
    return ", ".join([*(f"{flavor} #{_ranges(found)}" for flavor, found in whole.items()), *parts])


def _ranges(numbers: Iterable[int]) -> str:
    """`0-3, 6` for 0, 1, 2, 3, 6."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


_TASK_COLUMNS: list[Column[TaskView]] = [
    Column("task", lambda task: f"{task.group}/{task.index}"),
    Column("attempt", lambda task: str(task.attempt), is_right=True),
    Column("state", lambda task: state(task.state)),
    Column("since", lambda task: show_age(task.state_since), is_right=True),
    Column("ran", _held_seconds, is_right=True),
    Column("exit", lambda task: "-" if task.exit_code is None else str(task.exit_code), is_right=True),
    Column("why", lambda task: task.message or words(task.reason)),
    Column("devices", _devices),
    Column("node", lambda task: "-" if task.allocation is None else str(task.allocation.node_id)),
    Column("id", lambda task: str(task.task_id), is_extra=True),
]


MovesOption = Annotated[
    bool, typer.Option("--moves", help="For operators: which running tasks would have to move so that it starts.")
]


def explain(
    context: typer.Context, job: JobArgument, moves: MovesOption = False, output: OutputOption = Output.TABLE
) -> None:
    """Say why a job waits, and what would help."""
    if moves:
        explain_moves(connect(context), job, output)
        return
    explanation = connect(context).jobs.explain(job)
    if output is Output.JSON:
        show_json(explanation.model_dump(mode="json"))
    elif output is Output.ID:
        typer.echo(explanation.dominant)
    else:
        out().print(explanation_text(explanation))


def explanation_text(explanation: Explanation) -> RenderableType:
    """An explanation for a person."""
    fields: list[tuple[str, RenderableType]] = [
        ("state", state(explanation.state)),
        ("why", f"{words(explanation.dominant)}: {explanation.message}"),
    ]
    if explanation.position is not None:
        place = "next in its queue" if explanation.position == 1 else f"number {explanation.position} in its queue"
        fields.append(("position", place))
    if explanation.estimated_start is not None:
        fields.append(("expected by", show_time(explanation.estimated_start)))
    if explanation.largest_free_block is not None:
        fields.append(
            ("largest free block", f"{show_count(explanation.largest_free_block, 'whole device')} on one node")
        )
    if explanation.largest_free_profile is not None:
        fields.append(("largest free partition", explanation.largest_free_profile))
    if explanation.fragmentation_permille:
        share = show_share(explanation.fragmentation_permille)
        fields.append(("fragmented", f"{share} of what is free cannot be used by it"))
    if explanation.dominant != "dependencies":
        fields += [
            (f"{each.group} waits for", f"{each.waits_for}: {each.succeeded} of {each.tasks} tasks succeeded")
            for each in explanation.dependencies
        ]
    fields += [(f"runs on {each.flavor}", _placed(each)) for each in explanation.placed]
    return Group(field_grid(fields), *reason_parts(explanation))


def _placed(each: PlacedView) -> str:
    near = f"{each.tasks} of {each.group}, {show_share(each.distance.permille)} from what was asked for"
    parts = [f"{words(part.attribute)} {show_share(part.permille)}" for part in each.distance.parts]
    return f"{near} ({', '.join(parts)})" if parts else near


def reason_parts(verdict: Verdict) -> list[RenderableType]:
    """What stands behind a reason: nodes by reason, limits, and what would help."""
    parts: list[RenderableType] = []
    if verdict.counts:
        rows = [[words(reason), str(count)] for reason, count in _by_count(verdict.counts)]
        rows.append(["all nodes", str(verdict.nodes)])
        parts += [Text("\nthe pool's nodes", style="bold"), make_table([("reason", False), ("nodes", True)], rows)]
    if verdict.admission:
        parts += [Text("\nlimits of the virtual pool", style="bold"), _admission_table(verdict.admission)]
    if verdict.would_unblock:
        parts.append(Text("\nwhat would help", style="bold"))
        parts += [Text(f"  - {each.action}: {each.effect}") for each in verdict.would_unblock]
    return parts


def _by_count(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(((reason, count) for reason, count in counts.items() if count), key=lambda pair: (-pair[1], pair[0]))


def _admission_table(admission: list[AdmissionView]) -> RenderableType:
    heads = [("resource", False), *((name, True) for name in ("limit", "used", "borrowed", "requested", "missing"))]
    rows = []
    for line in admission:
        amounts = (line.limit, line.used, line.borrowed, line.requested, line.missing)
        shown = [show_amount(line.resource, amount) for amount in amounts]
        rows.append([line.flavor or line.resource, *shown])
    return make_table(heads, rows)


def cancel(context: typer.Context, job: JobArgument, output: OutputOption = Output.TABLE) -> None:
    """End a job; what runs is stopped with its grace."""
    view = connect(context).jobs.cancel(job)
    show_done(output, view, view.job_id, f"{escape(view.name)} is being ended ({view.state})")


def queue(
    context: typer.Context,
    virtual_pool: Annotated[
        str | None, typer.Argument(metavar="VIRTUAL_POOL", help="Name or id.", autocompletion=complete_virtual_pools)
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Whose virtual pool (name or id).", autocompletion=complete_tenants)
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the jobs that wait in a virtual pool, in order."""
    client = connect(context)
    pool = client.find_virtual_pool(virtual_pool, tenant=tenant)
    entries = client.queues.list(pool.virtual_pool_id)
    show_list(output, entries, _QUEUE_COLUMNS, lambda entry: entry.job_id, empty=f"nothing waits in {pool.name}")


_QUEUE_COLUMNS: list[Column[QueueEntry]] = [
    Column("position", lambda entry: str(entry.position), is_right=True),
    Column("name", lambda entry: entry.name),
    Column("priority", lambda entry: str(entry.priority), is_right=True),
    Column("waits", lambda entry: show_age(entry.created_at), is_right=True),
    Column("tasks", lambda entry: str(entry.pending_tasks), is_right=True),
    Column("why", lambda entry: entry.message or words(entry.dominant)),
    Column("id", lambda entry: str(entry.job_id), is_extra=True),
]


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.command("ps", rich_help_panel=JOBS)(ps)
    app.command("job", rich_help_panel=JOBS)(show_job)
    app.command("explain", rich_help_panel=JOBS)(explain)
    app.command("cancel", rich_help_panel=JOBS)(cancel)
    app.command("queue", rich_help_panel=JOBS)(queue)
