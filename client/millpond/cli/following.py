"""`logs` and `wait`: following a job while it runs."""

import sys
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from millpond.cli.amounts import parse_seconds, show_seconds
from millpond.cli.failures import REFUSED
from millpond.cli.jobs import JobArgument
from millpond.cli.rendering import show_one, words
from millpond.cli.session import JOBS, Output, OutputOption, connect, err
from millpond.client.client import Client
from millpond.client.errors import InvalidRequest
from millpond_contracts.bodies.jobs import JobDetail, JobState, TaskView
from millpond_contracts.ids import JobId, TaskId


def logs(
    context: typer.Context,
    job: JobArgument,
    task: Annotated[
        str | None, typer.Option(help="Which task: its id, GROUP/INDEX, or INDEX. Default: the first.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the task has ended.")] = False,
) -> None:
    """Show what a job has printed."""
    client = connect(context)
    job_id = client.jobs.id_of(job)
    task_id = None if task is None else find_task(client, job_id, task).task_id
    follow_log(client, job_id, task_id, follow=follow)


def find_task(client: Client, job_id: JobId, wanted: str) -> TaskView:
    """The task that a person means by an id, `main/3` or `3`.

    Raises:
        InvalidRequest: the job has no such task.
    """
    tasks = list(client.jobs.tasks(job_id))
    for each in tasks:
        if wanted in (str(each.task_id), f"{each.group}/{each.index}", str(each.index)):
            return each
    known = ", ".join(f"{each.group}/{each.index}" for each in tasks[:10])
    raise InvalidRequest(f"the job has no task {wanted!r}; it has {known}", code="client.task.unknown")


def follow_log(client: Client, job_id: JobId, task_id: TaskId | None = None, *, follow: bool = True) -> None:
    """Copies a log to standard output as it grows."""
    for text in client.jobs.read_log(job_id, task_id=task_id, follow=follow):
        sys.stdout.write(text)
        sys.stdout.flush()


def wait(
    context: typer.Context,
    job: JobArgument,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Give up after 90s, 15m or 2h; the job goes on.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Wait until a job has ended.

    Exits with 1 unless it succeeded.
    """
    client = connect(context)
    seconds = None if timeout is None else parse_seconds(timeout, "--timeout")
    job_id = client.jobs.id_of(job)
    wait_for(client, job_id, timeout_seconds=seconds, output=output)


def wait_for(
    client: Client,
    job_id: JobId,
    *,
    timeout_seconds: float | None = None,
    output: Output = Output.TABLE,
) -> None:
    """Waits with progress on stderr, says how it ended, and exits with 1 unless the job succeeded."""
    console = err()
    if console.is_terminal:
        with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as bar:
            row = bar.add_task("", total=None)
            detail = client.jobs.wait(
                job_id,
                timeout_seconds=timeout_seconds,
                on_look=lambda seen: bar.update(row, description=_progress(client, seen)),
            )
    else:
        said = {""}

        def say(seen: JobDetail) -> None:
            text = _progress(client, seen)
            if text not in said:
                said.add(text)
                console.print(text)

        detail = client.jobs.wait(job_id, timeout_seconds=timeout_seconds, on_look=say)
    if output is Output.TABLE:
        console.print(_ending(detail))
    else:
        show_one(output, detail, job_id, ())
    if detail.state is not JobState.SUCCEEDED:
        raise typer.Exit(REFUSED)


def _progress(client: Client, job: JobDetail) -> str:
    counts = ", ".join(f"{count} {name}" for group in job.groups for name, count in group.by_state.items() if count)
    is_waiting = any(group.by_state.get("pending") for group in job.groups)
    why = f" ({client.jobs.explain(job).message})" if is_waiting else ""
    return escape(f"{job.name}: {counts}{why}")


def _ending(job: JobDetail) -> str:
    began, ended = job.started_at, job.ended_at
    ran = f" after {show_seconds((ended - began).total_seconds())}" if began and ended else ""
    why = "" if job.state is JobState.SUCCEEDED else f": {escape(job.message or words(job.reason))}"
    style = "green" if job.state is JobState.SUCCEEDED else "red"
    return f"{job.name} [{style}]{job.state}[/{style}]{ran}{why}"


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.command("logs", rich_help_panel=JOBS)(logs)
    app.command("wait", rich_help_panel=JOBS)(wait)
