"""`submit`: from options or a file to a job, once its owner has seen what it would cost."""

from typing import Annotated

import typer

from millpond.cli.amounts import show_amount, show_mib, show_milli
from millpond.cli.failures import REFUSED
from millpond.cli.following import follow_log, wait_for
from millpond.cli.job_options import JobOptions, read_jobs, takes_job_options
from millpond.cli.planning import ask_to_submit, is_asking
from millpond.cli.rendering import Column, show_list, show_one
from millpond.cli.session import JOBS, Output, OutputOption, connect, err, out
from millpond.client.client import Client
from millpond_contracts.bodies.groups import GroupSpec
from millpond_contracts.bodies.jobs import JobSpec, JobView

WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until it has ended; exit with 1 unless it succeeded.")]
FollowOption = Annotated[bool, typer.Option("--follow", help="Show what it (its first task) prints, and wait.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, and do not look for an offer first.")]


@takes_job_options
def submit(
    context: typer.Context,
    options: JobOptions,
    yes: YesOption = False,
    wait: WaitOption = False,
    follow: FollowOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a job: `millpond submit -- python3 train.py`.

    With more: millpond submit --cpu 2 --memory 4GiB --gpus 1 --follow -- python3 train.py

    On a terminal it first shows the best offer, as `millpond plan` does, and asks; never with -y, -o json or -o id, for
    a list of jobs, or when its input or output is no terminal.
    """
    client = connect(context)
    found = read_jobs(client, options)
    if isinstance(found, list):
        _start_batch(client, found, output, is_followed=wait or follow)
        return
    if is_asking(output, yes=yes) and not ask_to_submit(client, found):
        err().print("not submitted")
        raise typer.Exit(REFUSED)
    _start(client, found, output, wait=wait, follow=follow)


def _start(client: Client, spec: JobSpec, output: Output, *, wait: bool, follow: bool) -> None:
    job = client.jobs.submit(spec)
    _tell(output, job, spec, is_followed=wait or follow)
    if follow:
        follow_log(client, job.job_id)
    if wait or follow:
        wait_for(client, job.job_id, output=output)


def _start_batch(client: Client, specs: list[JobSpec], output: Output, *, is_followed: bool) -> None:
    if is_followed:
        raise typer.BadParameter("only a single job can be waited for", param_hint="--wait")
    jobs = client.jobs.submit_batch(specs)
    if output is Output.TABLE:
        out().print(f"submitted {len(jobs)} job{'s' if len(jobs) != 1 else ''}")
    show_list(output, jobs, _BATCH_COLUMNS, lambda job: job.job_id, empty="no jobs")


_BATCH_COLUMNS: list[Column[JobView]] = [
    Column("name", lambda job: job.name),
    Column("tasks", lambda job: str(sum(group.count for group in job.groups)), is_right=True),
    Column("id", lambda job: str(job.job_id)),
]


def _tell(output: Output, job: JobView, spec: JobSpec, *, is_followed: bool) -> None:
    if output is not Output.TABLE:
        if not is_followed:  # else the job is shown once, when it has ended
            show_one(output, job, job.job_id, ())
        return
    console = out()
    tasks = sum(group.count for group in spec.groups)
    each = ", ".join(_show_group(group, spec) for group in spec.groups)
    console.print(f"submitted [bold]{job.name}[/bold]: {tasks} task{'s' if tasks != 1 else ''} with {each}")
    console.print(f"  {job.job_id}", style="dim")
    if not is_followed:
        console.print(f"  what it prints   millpond logs -f {job.name}", style="dim")
        console.print(f"  why it waits     millpond explain {job.name}", style="dim")


def _show_group(group: GroupSpec, spec: JobSpec) -> str:
    """What each task of a group gets; of several groups with its name and size."""
    wanted = group.resources
    shown = f"{show_amount('cpu', wanted.cpu_milli)} and {show_mib(wanted.memory_mib)}"
    if wanted.devices:
        device = wanted.devices[0]
        share = device.profile or ("" if device.milli == 1000 else show_milli(device.milli))
        times = "" if device.count == 1 else f"{device.count} x "
        shown += f" and {times}{share} of a {device.kind}" if share else f" and {device.count} {device.kind}"
    return shown if len(spec.groups) == 1 else f"{shown} ({group.count} of {group.name})"


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.command("submit", rich_help_panel=JOBS)(submit)
