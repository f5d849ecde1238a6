"""`submit`: from options or a file to a job."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from millpond.cli.amounts import parse_mib, parse_milli, parse_pairs, parse_seconds, show_amount, show_mib
from millpond.cli.completing import complete_projects, complete_tenants, complete_virtual_pools
from millpond.cli.following import follow_log, wait_for
from millpond.cli.rendering import Column, show_list, show_one
from millpond.cli.session import JOBS, Output, OutputOption, connect, out
from millpond.client.client import Client
from millpond_contracts.bodies.jobs import (
    DeviceRequest,
    GroupSpec,
    JobSpec,
    JobView,
    Requirements,
    Resources,
    RetrySpec,
    RunSpec,
    SimulateSpec,
    Toleration,
)
from millpond_contracts.resources import DeviceKind

_DOCUMENT = TypeAdapter(dict[str, object])
_DOCUMENTS = TypeAdapter(list[dict[str, object]])


FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        help="A whole job as JSON instead of options, or a list of jobs, submitted all or none; `-` = standard input.",
    ),
]
NameOption = Annotated[str | None, typer.Option(help="Lower case; need not be unique. Default: the program's.")]
CpuOption = Annotated[str, typer.Option(metavar="CORES", help="Cores per task: 2, 0.5 or 500m.")]
MemoryOption = Annotated[str, typer.Option(metavar="AMOUNT", help="Memory per task: 512MiB or 4GiB.")]
GpusOption = Annotated[int | None, typer.Option(min=1, max=64, help="Whole devices per task.")]
GpuMilliOption = Annotated[
    int | None, typer.Option(min=1, max=1000, help="A share of one device, in thousandths: 250 = a quarter.")
]
GpuMemoryOption = Annotated[
    str | None, typer.Option(metavar="AMOUNT", help="Device memory: the size of the share, or the least wanted.")
]
FlavorOption = Annotated[list[str] | None, typer.Option(help="Acceptable flavor of device; may be repeated.")]
DeviceOption = Annotated[DeviceKind, typer.Option(help="What kind of device `--gpus` means.")]
RequireOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME>=N", help="Hard demand, such as 'bf16_tflops>=300'.")
]
TolerateOption = Annotated[list[str] | None, typer.Option(metavar="KEY[=VALUE]", help="Accept nodes marked so.")]
GangOption = Annotated[bool, typer.Option("--gang", help="Start all tasks together or none of them.")]
CountOption = Annotated[int, typer.Option(min=1, max=10_000, help="How many tasks of this kind.")]
TenantOption = Annotated[
    str | None, typer.Option(help="Whose virtual pool (operators; name or id).", autocompletion=complete_tenants)
]
VirtualPoolOption = Annotated[
    str | None,
    typer.Option(
        help="Where the job queues (name or id). Default: the profile's, or the only one.",
        autocompletion=complete_virtual_pools,
    ),
]
ProjectOption = Annotated[
    str | None, typer.Option(help="Which project it counts for (name or id).", autocompletion=complete_projects)
]
PriorityOption = Annotated[int, typer.Option(min=0, max=1000, help="Higher goes first.")]
TimeLimitOption = Annotated[str | None, typer.Option(metavar="TIME", help="End each task after 90s, 15m or 2h.")]
RetriesOption = Annotated[int, typer.Option(min=0, max=100, help="Try again when a node is lost or work preempted.")]
EnvOption = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A variable of its environment.")]
LabelOption = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="For finding it again.")]
ImageOption = Annotated[str | None, typer.Option(help="A container image, where nodes can run one.")]
SimulateOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Act it out for so long on simulated nodes; a command is then not needed."),
]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until it has ended; exit with 1 unless it succeeded.")]
FollowOption = Annotated[bool, typer.Option("--follow", help="Show what it (its first task) prints, and wait.")]
CommandArgument = Annotated[
    list[str] | None, typer.Argument(metavar="-- COMMAND", help="What to run, after `--`; no shell interprets it.")
]


def submit(
    context: typer.Context,
    command: CommandArgument = None,
    file: FileOption = None,
    name: NameOption = None,
    cpu: CpuOption = "1",
    memory: MemoryOption = "512MiB",
    gpus: GpusOption = None,
    gpu_milli: GpuMilliOption = None,
    gpu_memory: GpuMemoryOption = None,
    flavor: FlavorOption = None,
    device: DeviceOption = DeviceKind.GPU,
    require: RequireOption = None,
    tolerate: TolerateOption = None,
    count: CountOption = 1,
    gang: GangOption = False,
    tenant: TenantOption = None,
    virtual_pool: VirtualPoolOption = None,
    project: ProjectOption = None,
    priority: PriorityOption = 50,
    time_limit: TimeLimitOption = None,
    retries: RetriesOption = 0,
    env: EnvOption = None,
    label: LabelOption = None,
    image: ImageOption = None,
    simulate: SimulateOption = None,
    wait: WaitOption = False,
    follow: FollowOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a job: `millpond submit -- python3 train.py`.

    With more: millpond submit --cpu 2 --memory 4GiB --gpus 1 --follow -- python3 train.py
    """
    client = connect(context)
    if file is not None:
        if command or simulate is not None:
            raise typer.BadParameter("give a file, or say what to run, not both", param_hint="--file")
        specs = read_job_file(client, file, virtual_pool, tenant)
        if isinstance(specs, list):
            _start_batch(client, specs, output, is_followed=wait or follow)
            return
        spec = specs
    else:
        devices = device_request(device, gpus, gpu_milli, gpu_memory, tuple(flavor or ()))
        group = GroupSpec(
            count=count,
            gang=gang,
            resources=_resources(cpu, memory, devices),
            requires=Requirements(attributes=parse_requirements(require or [])),
            tolerations=tuple(_toleration(text) for text in tolerate or ()),
            run=_run(command, simulate, image, parse_pairs(env or [], "--env")),
        )
        pool = client.find_virtual_pool(virtual_pool, tenant=tenant)
        spec = JobSpec(
            name=name or name_of(group.run.command[0] if group.run.command else "simulated"),
            virtual_pool=pool.virtual_pool_id,
            priority=priority,
            groups=(group,),
            time_limit_seconds=None if time_limit is None else parse_seconds(time_limit, "--time-limit"),
            retry=RetrySpec(max=retries),
            labels=parse_pairs(label or [], "--label"),
            project_id=None if project is None else client.projects.get(project, tenant_id=pool.tenant_id).project_id,
        )
    _start(client, spec, output, wait=wait, follow=follow)


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


def _resources(cpu: str, memory: str, devices: tuple[DeviceRequest, ...]) -> Resources:
    return Resources(cpu_milli=parse_milli(cpu, "--cpu"), memory_mib=parse_mib(memory, "--memory"), devices=devices)


def _run(command: list[str] | None, simulate: str | None, image: str | None, env: dict[str, str]) -> RunSpec:
    if not command and simulate is None:
        raise typer.BadParameter("say what to run after `--`, such as: millpond submit -- python3 train.py")
    acted = None if simulate is None else SimulateSpec(seconds=parse_seconds(simulate, "--simulate"))
    return RunSpec(command=tuple(command or ()), image=image, env=env, simulate=acted)


def read_job_file(client: Client, file: Path, virtual_pool: str | None, tenant: str | None) -> JobSpec | list[JobSpec]:
    """The job in a file, or the jobs of a list; their `virtual_pool` may be a name, and may be left out.

    Raises:
        typer.BadParameter: it cannot be read, or is neither a JSON object nor a list of them.
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        is_list = text.lstrip().startswith("[")
        documents = _DOCUMENTS.validate_json(text) if is_list else [_DOCUMENT.validate_json(text)]
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {file}: {error}", param_hint="--file") from error
    except ValidationError as error:
        raise typer.BadParameter(
            f"{file} is no JSON object: {error.errors()[0]['msg']}", param_hint="--file"
        ) from error
    specs = [_job_of(client, document, virtual_pool, tenant) for document in documents]
    return specs if is_list else specs[0]


def _job_of(client: Client, document: dict[str, object], virtual_pool: str | None, tenant: str | None) -> JobSpec:
    wanted = virtual_pool or document.get("virtual_pool")
    pool = client.find_virtual_pool(None if wanted is None else str(wanted), tenant=tenant)
    return JobSpec.model_validate_json(_DOCUMENT.dump_json({**document, "virtual_pool": str(pool.virtual_pool_id)}))


def device_request(
    kind: DeviceKind, count: int | None, milli: int | None, memory: str | None, flavors: tuple[str, ...]
) -> tuple[DeviceRequest, ...]:
    """The devices of one task from the options; none when no option speaks of devices.

    Raises:
        typer.BadParameter: the options contradict one another.
    """
    if count is None and milli is None and memory is None and not flavors:
        return ()
    if milli is not None and count is not None:
        raise typer.BadParameter("give whole devices or a share of one, not both", param_hint="--gpu-milli")
    request = DeviceRequest(
        kind=kind,
        count=count or 1,
        milli=1000 if milli is None else milli,
        memory_mib=None if memory is None else parse_mib(memory, "--gpu-memory"),
        flavors=flavors,
    )
    return (request,)


def parse_requirements(texts: list[str]) -> dict[str, str]:
    """`bf16_tflops>=300` as attribute -> minimum.

    Raises:
        typer.BadParameter: there is no `>=`.
    """
    demands = {}
    for text in texts:
        attribute, separator, minimum = text.partition(">=")
        if not separator:
            raise typer.BadParameter(f"expected NAME>=N, found {text[:60]!r}", param_hint="--require")
        demands[attribute.strip()] = f">={minimum.strip()}"
    return demands


def name_of(program: str) -> str:
    """A job's name made from its program: `/usr/bin/Python3` = `python3`."""
    kept = "".join(
        each if each.isascii() and (each.isalnum() or each in "._-") else "-" for each in Path(program).name.lower()
    )
    return kept.strip("._-")[:63].rstrip("._-") or "job"


def _toleration(text: str) -> Toleration:
    key, separator, value = text.partition("=")
    return Toleration(key=key, value=value if separator else None)


def _tell(output: Output, job: JobView, spec: JobSpec, *, is_followed: bool) -> None:
    if output is not Output.TABLE:
        if not is_followed:  # else the job is shown once, when it has ended
            show_one(output, job, job.job_id, ())
        return
    console = out()
    tasks = sum(group.count for group in spec.groups)
    first = spec.groups[0].resources
    each = f"{show_amount('cpu', first.cpu_milli)} and {show_mib(first.memory_mib)}" + (
        f" and {first.devices[0].count} {first.devices[0].kind}" if first.devices else ""
    )
    console.print(f"submitted [bold]{job.name}[/bold]: {tasks} task{'s' if tasks != 1 else ''} with {each}")
    console.print(f"  {job.job_id}", style="dim")
    if not is_followed:
        console.print(f"  what it prints   millpond logs -f {job.name}", style="dim")
        console.print(f"  why it waits     millpond explain {job.name}", style="dim")


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.command("submit", rich_help_panel=JOBS)(submit)
