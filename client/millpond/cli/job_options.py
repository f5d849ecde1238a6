"""The options that describe a job, for every command that takes one; and from them, or from a file, to jobs."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from pydantic import TypeAdapter, ValidationError

from millpond.cli.amounts import parse_mib, parse_milli, parse_pairs, parse_seconds
from millpond.cli.completing import complete_projects, complete_tenants, complete_virtual_pools
from millpond.cli.failures import list_places
from millpond.client.client import Client
from millpond_contracts.bodies.groups import (
    DeviceRequest,
    GroupSpec,
    Preferences,
    Requirements,
    Resources,
    RunSpec,
    SimulateSpec,
    TaskKind,
    Toleration,
)
from millpond_contracts.bodies.jobs import JobSpec, RetrySpec
from millpond_contracts.bodies.places import (
    AntiAffinity,
    AntiAffinityScope,
    LabelOperator,
    NodeAffinity,
    TopologySpread,
)
from millpond_contracts.partitions import list_profile_names
from millpond_contracts.resources import DeviceKind, TopologyLevel

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
ProfileOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="One hardware partition (MIG) per task, such as 2g.20gb.")
]
FlavorOption = Annotated[list[str] | None, typer.Option(help="Acceptable flavor of device; may be repeated.")]
DeviceOption = Annotated[DeviceKind, typer.Option(help="What kind of device `--gpus` means.")]
RequireOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME>=N", help="Hard demand, such as 'bf16_tflops>=300'.")
]
TaskKindOption = Annotated[
    TaskKind, typer.Option(help="What it does: of the devices that may take it, the nearest to such work is chosen.")
]
TolerateOption = Annotated[list[str] | None, typer.Option(metavar="KEY[=VALUE]", help="Accept nodes marked so.")]
AffinityOption = Annotated[
    list[str] | None,
    typer.Option(metavar="LABEL=VALUES", help="Only nodes with one of the values, such as rack=r1,r2; != for none of."),
]
AntiAffinityOption = Annotated[
    list[TopologyLevel] | None, typer.Option(help="No two tasks of the job in one domain of this level.")
]
SpreadOption = Annotated[
    list[str] | None, typer.Option(metavar="LEVEL=N", help="At most so many tasks in each domain, such as rack=2.")
]
PackOption = Annotated[
    TopologyLevel | None, typer.Option(help="All tasks of the gang in one domain of this level, or it waits.")
]
PreferPackOption = Annotated[
    TopologyLevel | None, typer.Option(help="The same where one has room, else in the next wider, else anywhere.")
]
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
CommandArgument = Annotated[
    list[str] | None, typer.Argument(metavar="-- COMMAND", help="What to run, after `--`; no shell interprets it.")
]


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a person said of a job."""

    command: CommandArgument = None
    file: FileOption = None
    name: NameOption = None
    cpu: CpuOption = "1"
    memory: MemoryOption = "512MiB"
    gpus: GpusOption = None
    gpu_milli: GpuMilliOption = None
    gpu_memory: GpuMemoryOption = None
    profile: ProfileOption = None
    flavor: FlavorOption = None
    device: DeviceOption = DeviceKind.GPU
    require: RequireOption = None
    task_kind: TaskKindOption = TaskKind.GENERAL
    tolerate: TolerateOption = None
    affinity: AffinityOption = None
    anti_affinity: AntiAffinityOption = None
    spread: SpreadOption = None
    pack: PackOption = None
    prefer_pack: PreferPackOption = None
    count: CountOption = 1
    gang: GangOption = False
    tenant: TenantOption = None
    virtual_pool: VirtualPoolOption = None
    project: ProjectOption = None
    priority: PriorityOption = 50
    time_limit: TimeLimitOption = None
    retries: RetriesOption = 0
    env: EnvOption = None
    label: LabelOption = None
    image: ImageOption = None
    simulate: SimulateOption = None


def takes_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with every option of a job in place of its parameter `options`, so that they are written once."""
    hints = get_type_hints(JobOptions, include_extras=True)
    described = [
        Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in fields(JobOptions)
    ]
    own = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in signature(command, eval_str=True).parameters.values()]
    place = [each.name for each in own].index("options")
    parameters = [*own[:place], *described, *own[place + 1 :]]

    @wraps(command)
    def taking(**given: Any) -> None:
        options = JobOptions(**{each.name: given.pop(each.name) for each in described})
        command(options=options, **given)

    # What typer reads instead of the parameters that are written.
    vars(taking)["__signature__"] = Signature(parameters)
    taking.__annotations__ = {each.name: each.annotation for each in parameters}
    return taking


def read_jobs(client: Client, options: JobOptions) -> JobSpec | list[JobSpec]:
    """The job that the options describe, or the job or list of jobs in the file that they name.

    Raises:
        typer.BadParameter: something cannot be read, or contradicts something else.
    """
    if options.file is not None:
        if options.command or options.simulate is not None:
            raise typer.BadParameter("give a file, or say what to run, not both", param_hint="--file")
        return read_job_file(client, options.file, options.virtual_pool, options.tenant)
    group = _read_group(options)
    pool = client.find_virtual_pool(options.virtual_pool, tenant=options.tenant)
    project = options.project
    return JobSpec(
        name=options.name or name_of(group.run.command[0] if group.run.command else "simulated"),
        virtual_pool=pool.virtual_pool_id,
        priority=options.priority,
        groups=(group,),
        time_limit_seconds=None if options.time_limit is None else parse_seconds(options.time_limit, "--time-limit"),
        retry=RetrySpec(max=options.retries),
        labels=parse_pairs(options.label or [], "--label"),
        project_id=None if project is None else client.projects.get(project, tenant_id=pool.tenant_id).project_id,
    )


def _read_group(options: JobOptions) -> GroupSpec:
    devices = device_request(
        options.device,
        options.gpus,
        options.gpu_milli,
        options.gpu_memory,
        tuple(options.flavor or ()),
        options.profile,
    )
    return GroupSpec(
        count=options.count,
        gang=options.gang,
        resources=Resources(
            cpu_milli=parse_milli(options.cpu, "--cpu"),
            memory_mib=parse_mib(options.memory, "--memory"),
            devices=devices,
        ),
        requires=Requirements(
            attributes=parse_requirements(options.require or []),
            affinity=tuple(map(_affinity, options.affinity or ())),
            anti_affinity=tuple(
                AntiAffinity(level=level, scope=AntiAffinityScope.JOB) for level in options.anti_affinity or ()
            ),
            spread=tuple(map(_spread, options.spread or ())),
            pack=options.pack,
        ),
        prefers=Preferences(task_kind=options.task_kind, pack=options.prefer_pack),
        tolerations=tuple(_toleration(text) for text in options.tolerate or ()),
        run=_read_run(options),
    )


def _read_run(options: JobOptions) -> RunSpec:
    if not options.command and options.simulate is None:
        raise typer.BadParameter("say what to run after `--`, such as: -- python3 train.py")
    acted = None if options.simulate is None else SimulateSpec(seconds=parse_seconds(options.simulate, "--simulate"))
    env = parse_pairs(options.env or [], "--env")
    return RunSpec(command=tuple(options.command or ()), image=options.image, env=env, simulate=acted)


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
    kind: DeviceKind,
    count: int | None,
    milli: int | None,
    memory: str | None,
    flavors: tuple[str, ...],
    profile: str | None = None,
) -> tuple[DeviceRequest, ...]:
    """The devices of one task from the options; none when no option speaks of devices.

    Raises:
        typer.BadParameter: the options contradict one another.
    """
    if count is None and milli is None and memory is None and profile is None and not flavors:
        return ()
    if profile is not None:
        if (count, milli, memory) != (None, None, None):
            raise typer.BadParameter("a profile says how much of a device: give it alone", param_hint="--profile")
        if profile not in list_profile_names():
            raise typer.BadParameter(f"no model has the profile {profile[:40]!r}", param_hint="--profile")
    if milli is not None and count is not None:
        raise typer.BadParameter("give whole devices or a share of one, not both", param_hint="--gpu-milli")
    request = DeviceRequest(
        kind=kind,
        count=count or 1,
        milli=1000 if milli is None else milli,
        memory_mib=None if memory is None else parse_mib(memory, "--gpu-memory"),
        flavors=flavors,
        profile=profile,
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


def _affinity(text: str) -> NodeAffinity:
    label, separator, values = text.partition("=")
    if not separator or not values:
        raise typer.BadParameter(
            f"expected LABEL=VALUES or LABEL!=VALUES, found {text[:60]!r}", param_hint="--affinity"
        )
    operator = LabelOperator.NOT_IN if label.endswith("!") else LabelOperator.IN
    named = tuple(value.strip() for value in values.split(","))
    if not all(named):
        raise typer.BadParameter(f"a value is empty in {text[:60]!r}", param_hint="--affinity")
    with _naming("--affinity"):
        return NodeAffinity(label=label.removesuffix("!"), operator=operator, values=named)


def _spread(text: str) -> TopologySpread:
    level, separator, most = text.partition("=")
    if not separator or level not in list(TopologyLevel) or not most.isdecimal():
        levels = ", ".join(TopologyLevel)
        raise typer.BadParameter(f"expected LEVEL=N with one of {levels}, found {text[:60]!r}", param_hint="--spread")
    with _naming("--spread"):
        return TopologySpread(level=TopologyLevel(level), max_tasks=int(most))


@contextmanager
def _naming(option: str) -> Iterator[None]:
    """What is refused of an option is told by the option's name."""
    try:
        yield
    except ValidationError as error:
        raise typer.BadParameter("; ".join(list_places(error)), param_hint=option) from error


def _toleration(text: str) -> Toleration:
    key, separator, value = text.partition("=")
    return Toleration(key=key, value=value if separator else None)
