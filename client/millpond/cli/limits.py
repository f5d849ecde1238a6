"""Virtual pools and use against their limits: `limit ...`, `usage`."""

from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from millpond.cli.amounts import (
    parse_mib,
    parse_milli,
    parse_pairs,
    parse_seconds,
    show_amount,
    show_mib,
    show_milli,
    show_seconds,
    show_time,
)
from millpond.cli.completing import complete_pools, complete_tenants, complete_virtual_pools
from millpond.cli.rendering import Column, heading, make_table, show_done, show_list, show_one
from millpond.cli.session import TENANTS, Output, OutputOption, connect, out
from millpond.client.client import Client
from millpond_contracts.bodies.tenants import (
    Limit,
    LimitAlert,
    Limits,
    Preemption,
    QueuePolicy,
    VirtualPoolChange,
    VirtualPoolSpec,
    VirtualPoolView,
)
from millpond_contracts.bodies.verdicts import UsageLine
from millpond_contracts.ids import TenantId

_BAR = 12
_STOPS = {Preemption.NEVER: "never", Preemption.LOWER_PRIORITY: "its own of lower priority"}
_FIRST = {
    QueuePolicy.FIFO: "the oldest",
    QueuePolicy.PRIORITY: "the highest priority",
    QueuePolicy.SHORTEST_JOB_FIRST: "the least work",
    QueuePolicy.FAIR_SHARE: "the least served project",
}

limit = typer.Typer(
    name="limit",
    help="Give tenants shares of pools, and set their limits.\n\nA share is a virtual pool; its jobs queue there.",
    no_args_is_help=True,
)

VirtualPoolArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The virtual pool's name or id.", autocompletion=complete_virtual_pools)
]
OwnerOption = Annotated[
    str | None,
    typer.Option("--tenant", help="Whose (name or id); tells equal names apart.", autocompletion=complete_tenants),
]
CpuOption = Annotated[str | None, typer.Option("--cpu", metavar="CORES", help="Its own share of cores.")]
MemoryOption = Annotated[str | None, typer.Option("--memory", metavar="AMOUNT", help="Its own share of memory: 64GiB.")]
DeviceOption = Annotated[
    list[str] | None,
    typer.Option("--device", metavar="FLAVOR=N", help="Its own share of devices of a flavor; may be repeated."),
]
BorrowOption = Annotated[
    list[str] | None,
    typer.Option("--borrow", metavar="WHAT=N", help="May use so much more while others do not: cpu=2, memory=4GiB."),
]
LendOption = Annotated[
    list[str] | None, typer.Option("--lend", metavar="WHAT=N", help="Others may use so much of its idle share.")
]
HardOption = Annotated[
    list[str] | None,
    typer.Option(
        "--hard", metavar="WHAT=N", help="Never more than this. Default: its own share and what it may borrow."
    ),
]
ReclaimOption = Annotated[
    str | None,
    typer.Option("--reclaim", metavar="GRACE", help="Stop what is still above the limits after 0s, 15m or 2h."),
]
PreemptionOption = Annotated[
    Preemption | None, typer.Option("--preemption", help="Whether a job may stop others of lower priority beside it.")
]
MinimumRuntimeOption = Annotated[
    str | None,
    typer.Option("--minimum-runtime", metavar="TIME", help="Tasks are not stopped for others before: 0s, 15m, 2h."),
]
PolicyOption = Annotated[QueuePolicy | None, typer.Option("--policy", help="Which of its jobs goes first.")]


@limit.command("create")
def create_limit(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What the virtual pool is called, such as main.")],
    tenant: Annotated[str, typer.Option(help="Whose it is (name or id).", autocompletion=complete_tenants)],
    pool: Annotated[str, typer.Option(help="The pool it is a share of (name or id).", autocompletion=complete_pools)],
    cpu: Annotated[str, typer.Option("--cpu", metavar="CORES", help="Its own share of cores.")],
    memory: Annotated[str, typer.Option("--memory", metavar="AMOUNT", help="Its own share of memory: 64GiB.")],
    device: DeviceOption = None,
    borrow: BorrowOption = None,
    lend: LendOption = None,
    hard: HardOption = None,
    policy: PolicyOption = None,
    preemption: PreemptionOption = None,
    minimum_runtime: MinimumRuntimeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give a tenant a share of a pool.

    For example: millpond limit create main --tenant acme --pool default --cpu 2 --memory 4GiB --device h100-sxm=2
    """
    client = connect(context)
    none = Limits(cpu=Limit(), memory=Limit())
    spec = VirtualPoolSpec(
        name=name,
        tenant_id=client.tenants.id_of(tenant),
        pool_id=client.pools.id_of(pool),
        limits=change_limits(none, cpu, memory, device or [], borrow or [], lend or [], hard or []),
        policy=policy or QueuePolicy.PRIORITY,
        preemption=preemption or Preemption.NEVER,
        minimum_runtime_seconds=_seconds(minimum_runtime) or 0,
    )
    made = client.virtual_pools.create(spec)
    sentence = f"{tenant} may use {show_limits(made.limits)} of {pool}, by the name [bold]{made.name}[/bold]"
    show_done(output, made, made.virtual_pool_id, sentence)


@limit.command("set")
def set_limit(
    context: typer.Context,
    name: VirtualPoolArgument,
    tenant: OwnerOption = None,
    cpu: CpuOption = None,
    memory: MemoryOption = None,
    device: DeviceOption = None,
    borrow: BorrowOption = None,
    lend: LendOption = None,
    hard: HardOption = None,
    policy: PolicyOption = None,
    preemption: PreemptionOption = None,
    minimum_runtime: MinimumRuntimeOption = None,
    reclaim: ReclaimOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change limits; what is not named stays.

    Lowering admits nothing new; it stops something only with --reclaim.
    """
    client = connect(context)
    found = find_virtual_pool(client, name, tenant)
    limits = change_limits(found.limits, cpu, memory, device or [], borrow or [], lend or [], hard or [])
    change = VirtualPoolChange(
        limits=limits, policy=policy, preemption=preemption, minimum_runtime_seconds=_seconds(minimum_runtime)
    )
    if reclaim is not None:
        grace = parse_seconds(reclaim, "--reclaim")
        change = change.model_copy(update={"reclaim": True, "reclaim_grace_seconds": grace})
    changed = client.virtual_pools.change(found, change)
    show_done(output, changed, changed.virtual_pool_id, _tell_change(changed, change))


def _tell_change(changed: VirtualPoolView, change: VirtualPoolChange) -> str:
    told = [f"{changed.name} may use {show_limits(changed.limits)} now"]
    if change.policy is not None:
        told.append(f"first goes {_FIRST[changed.policy]}")
    if change.preemption is not None:
        told.append(f"stops others: {_STOPS[changed.preemption]}")
    if change.minimum_runtime_seconds is not None:
        told.append(f"runs at least {show_seconds(changed.minimum_runtime_seconds)}")
    return "; ".join(told)


def _seconds(minimum_runtime: str | None) -> int | None:
    return None if minimum_runtime is None else parse_seconds(minimum_runtime, "--minimum-runtime")


def change_limits(
    present: Limits,
    cpu: str | None,
    memory: str | None,
    device: list[str],
    borrow: list[str],
    lend: list[str],
    hard: list[str],
) -> Limits:
    """The limits after the options; what no option names stays.

    Raises:
        typer.BadParameter: an amount cannot be read.
    """
    parts: dict[str, dict[str, int]] = {"cpu": _numbers(present.cpu), "memory": _numbers(present.memory)}
    parts |= {flavor: _numbers(found) for flavor, found in present.devices.items()}
    if cpu is not None:
        parts["cpu"]["guaranteed"] = parse_milli(cpu, "--cpu")
    if memory is not None:
        parts["memory"]["guaranteed"] = parse_mib(memory, "--memory")
    for field, option, texts in (
        ("guaranteed", "--device", device),
        ("borrow", "--borrow", borrow),
        ("lend", "--lend", lend),
        ("hard", "--hard", hard),
    ):
        for what, amount in parse_pairs(texts, option).items():
            parsed = parse_mib(amount, option) if what == "memory" else parse_milli(amount, option)
            parts.setdefault(what, {})[field] = parsed
    limits = {what: Limit(**numbers) for what, numbers in parts.items()}
    return Limits(cpu=limits.pop("cpu"), memory=limits.pop("memory"), devices=limits)


def _numbers(found: Limit) -> dict[str, int]:
    return dict(found.model_dump(exclude_none=True))


def find_virtual_pool(client: Client, name: str, tenant: str | None) -> VirtualPoolView:
    """The virtual pool that a person means."""
    return client.virtual_pools.get(name, tenant_id=None if tenant is None else client.tenants.id_of(tenant))


def show_limits(limits: Limits) -> str:
    """Limits in a sentence: `2 cores (at most 4), 4 GiB, 1 h100-sxm`."""
    parts = [_sentence(show_amount("cpu", limits.cpu.guaranteed), limits.cpu, show_milli)]
    parts.append(_sentence(show_mib(limits.memory.guaranteed), limits.memory, show_mib))
    parts += [
        _sentence(f"{show_milli(found.guaranteed)} {flavor}", found, show_milli)
        for flavor, found in limits.devices.items()
    ]
    return ", ".join(parts)


def _sentence(own: str, found: Limit, show: Callable[[int], str]) -> str:
    return own if found.cap == found.guaranteed else f"{own} (at most {show(found.cap)})"


@limit.command("list")
def list_limits(context: typer.Context, tenant: OwnerOption = None, output: OutputOption = Output.TABLE) -> None:
    """List virtual pools with their limits."""
    client = connect(context)
    found = list(client.virtual_pools.list(tenant_id=None if tenant is None else client.tenants.id_of(tenant)))
    tenants = {each.tenant_id: each.name for each in client.tenants.list()} if output is Output.TABLE else {}
    pools = {each.pool_id: each.name for each in client.pools.list()} if output is Output.TABLE else {}
    columns: list[Column[VirtualPoolView]] = [
        Column("name", lambda each: each.name),
        Column("tenant", lambda each: tenants.get(each.tenant_id, str(each.tenant_id))),
        Column("pool", lambda each: pools.get(each.pool_id, str(each.pool_id))),
        Column("may use", lambda each: show_limits(each.limits)),
        Column("first goes", lambda each: _FIRST[each.policy]),
        Column("id", lambda each: str(each.virtual_pool_id), is_extra=True),
    ]
    empty = "no virtual pools; `millpond limit create NAME --tenant TENANT --pool POOL --cpu 2 --memory 4GiB` makes one"
    show_list(output, found, columns, lambda each: each.virtual_pool_id, empty=empty)


@limit.command("show")
def show_limit(
    context: typer.Context, name: VirtualPoolArgument, tenant: OwnerOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Show one virtual pool: each limit, and what waits for one."""
    client = connect(context)
    found = find_virtual_pool(client, name, tenant)
    fields: list[tuple[str, RenderableType]] = [
        ("name", found.name),
        ("id", str(found.virtual_pool_id)),
        ("tenant", str(found.tenant_id)),
        ("pool", str(found.pool_id)),
        ("stops others", _STOPS[found.preemption]),
        ("runs at least", show_seconds(found.minimum_runtime_seconds)),
        ("first goes", f"{_FIRST[found.policy]} ({found.policy.value})"),
    ]
    show_one(output, found, found.virtual_pool_id, fields)
    if output is Output.TABLE:
        heads = [("", False), ("own share", True), ("may borrow", True), ("lends", True), ("never more than", True)]
        out().print(make_table(heads, _limit_rows(found.limits)))
        alerts = [each for each in client.virtual_pools.alerts(found.virtual_pool_id) if each.closed_at is None]
        for alert in alerts:
            heading(out(), _alert_sentence(alert))


def _limit_rows(limits: Limits) -> list[list[str]]:
    named = {"cpu": limits.cpu, "memory": limits.memory, **limits.devices}
    return [
        [what, *(show_amount(what if what in ("cpu", "memory") else "device", number) for number in numbers)]
        for what, found in named.items()
        for numbers in [(found.guaranteed, found.borrow, found.lend, found.cap)]
    ]


def _alert_sentence(alert: LimitAlert) -> str:
    what = alert.flavor or alert.resource
    missing = show_amount(alert.resource, alert.missing)
    return f"work waits for {what} since {show_time(alert.opened_at)}: {missing} missing"


@limit.command("delete")
def delete_limit(context: typer.Context, name: VirtualPoolArgument, tenant: OwnerOption = None) -> None:
    """Delete a virtual pool: nothing new is admitted, what runs goes on."""
    client = connect(context)
    found = find_virtual_pool(client, name, tenant)
    client.virtual_pools.delete(found)
    out().print(f"deleted virtual pool {found.name}")


def usage(
    context: typer.Context,
    virtual_pool: Annotated[
        str | None,
        typer.Argument(
            metavar="[VIRTUAL_POOL]", help="Name or id. Default: all.", autocompletion=complete_virtual_pools
        ),
    ] = None,
    tenant: OwnerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what is in use against limits, now."""
    client = connect(context)
    tenant_id: TenantId | None = None if tenant is None else client.tenants.id_of(tenant)
    chosen = (
        None if virtual_pool is None else client.virtual_pools.get(virtual_pool, tenant_id=tenant_id).virtual_pool_id
    )
    lines = client.usage.list(virtual_pool=chosen, tenant_id=tenant_id)
    owners = {each.tenant_id: each.name for each in client.tenants.list()} if output is Output.TABLE else {}
    columns: list[Column[UsageLine]] = [
        Column("tenant", lambda line: owners.get(line.tenant_id, str(line.tenant_id))),
        Column("virtual pool", lambda line: line.virtual_pool),
        Column("of", lambda line: line.flavor or line.resource),
        Column("in use", lambda line: show_amount(line.resource, line.used), is_right=True),
        Column("own share", lambda line: show_amount(line.resource, line.guaranteed), is_right=True),
        Column("borrowed", lambda line: show_amount(line.resource, line.borrowed), is_right=True),
        Column("never more than", lambda line: show_amount(line.resource, line.hard), is_right=True),
        Column("full", full_of),
        Column("over it", _over, is_right=True, is_extra=True),
    ]
    show_list(output, lines, columns, lambda line: line.virtual_pool_id, empty="nothing is limited")


def full_of(line: UsageLine) -> Text:
    """How much of a limit is used, as a bar, and whether work waits for it."""
    ratio = min(1.0, line.used / line.hard) if line.hard else 1.0
    filled = round(ratio * _BAR)
    style = "red" if line.blocked else "yellow" if line.borrowed else "green"
    bar = Text.assemble(("█" * filled, style), ("░" * (_BAR - filled), "dim"), f" {ratio:.0%}")
    if line.blocked:
        bar.append(f", work waits for {show_amount(line.resource, line.missing)}", "red")
    return bar


def _over(line: UsageLine) -> str:
    return show_amount(line.resource, line.over_limit) if line.over_limit else "-"


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(limit, rich_help_panel=TENANTS)
    app.command("usage", rich_help_panel=TENANTS)(usage)
