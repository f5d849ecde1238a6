"""`top`: pools, machines, what runs and what waits, on one screen that keeps itself up to date."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from millpond.cli.amounts import show_mib, show_milli
from millpond.cli.completing import complete_pools
from millpond.cli.jobs import JOB_COLUMNS
from millpond.cli.limits import full_of
from millpond.cli.nodes import node_columns
from millpond.cli.rendering import Column, fitting_table, make_table, show_json
from millpond.cli.session import IMPATIENCE, JOBS, Output, OutputOption, connect, out
from millpond.client.client import Client
from millpond.client.errors import Unavailable, Unreachable
from millpond_contracts.bodies.jobs import JobState, JobView
from millpond_contracts.bodies.nodes import NodeView
from millpond_contracts.bodies.pools import PoolCapacity, PoolView
from millpond_contracts.bodies.tenants import Role
from millpond_contracts.bodies.verdicts import UsageLine

# The API is asked for no more than a screen could show; the rest is counted.
_LOOKED_AT = 1000
_WITHOUT_TERMINAL = 20
# Lines that headings, table heads and blank lines take on the screen.
_FRAME_LINES = 24
_LEAST_ROWS = 3

Item = TypeVar("Item", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one time. `nodes` is None for those who may not see machines."""

    at: datetime
    pools: list[tuple[PoolView, PoolCapacity]]
    nodes: list[NodeView] | None
    usage: list[UsageLine]
    pending: list[JobView]
    running: list[JobView]


def take_look(client: Client, role: Role, pool: str | None = None) -> Look:
    """What there is to see for a role, in one pool or in all."""
    pools = list(client.pools.list()) if pool is None else [client.pools.get(pool)]
    ids = {each.pool_id for each in pools}
    pool_id = None if pool is None else pools[0].pool_id
    jobs = {
        state: [job for job in islice(client.jobs.list(state=state), _LOOKED_AT) if job.pool_id in ids]
        for state in (JobState.PENDING, JobState.RUNNING)
    }
    return Look(
        at=datetime.now(UTC),
        pools=[(each, client.pools.capacity(each.pool_id)) for each in pools],
        nodes=list(islice(client.nodes.list(pool_id=pool_id), _LOOKED_AT)) if role is Role.OPERATOR else None,
        usage=list(client.usage.list(pool_id=pool_id)),
        pending=jobs[JobState.PENDING],
        running=jobs[JobState.RUNNING],
    )


def top(
    context: typer.Context,
    pool: Annotated[
        str | None, typer.Option(help="Only this pool (name or id).", autocompletion=complete_pools)
    ] = None,
    interval: Annotated[float, typer.Option(min=0.5, max=3600, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and end, as without a terminal.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Watch pools, machines, the queue and what runs; Ctrl-C ends it.

    Without a terminal, or with --once, it is printed once.
    """
    client = connect(context, IMPATIENCE)
    role = client.me().role
    console = out()
    if output is not Output.TABLE:
        _print_plainly(output, take_look(client, role, pool))
    elif once or not console.is_terminal:
        console.print(screen(console, client.url, take_look(client, role, pool), _WITHOUT_TERMINAL))
    else:
        _keep_watching(console, client, role, pool, interval)


def _print_plainly(output: Output, look: Look) -> None:
    if output is Output.ID:
        for job in (*look.running, *look.pending):
            typer.echo(str(job.job_id))
        return
    show_json(
        {
            "at": look.at.isoformat(),
            "pools": [found.model_dump(mode="json") for _, found in look.pools],
            "nodes": None if look.nodes is None else [each.model_dump(mode="json") for each in look.nodes],
            "usage": [each.model_dump(mode="json") for each in look.usage],
            "pending": [each.model_dump(mode="json") for each in look.pending],
            "running": [each.model_dump(mode="json") for each in look.running],
        }
    )


def _keep_watching(console: Console, client: Client, role: Role, pool: str | None, interval: float) -> None:
    shown: RenderableType = Text(f"{client.url}: looking …", style="dim")
    with Live(shown, console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                try:
                    shown = screen(console, client.url, take_look(client, role, pool))
                    live.update(shown, refresh=True)
                except (Unreachable, Unavailable) as error:
                    # The last look stays; a stack that restarts is seen again by itself.
                    live.update(Group(Text(f"no answer: {error.detail}", style="red"), shown), refresh=True)
                time.sleep(interval)
        except KeyboardInterrupt:
            return


def screen(console: Console, url: str, look: Look, rows: int | None = None) -> RenderableType:
    """A look as text, with at most so many rows for each part; None = as many as the screen has room for."""
    parts = 3 if look.nodes is None else 4
    room = rows or max(_LEAST_ROWS, (console.height - _FRAME_LINES - len(look.pools)) // parts)
    pools = {each.pool_id: each.name for each, _ in look.pools}
    shown: list[RenderableType] = [
        Text.assemble(
            ("millpond top", "bold"),
            f"  {url}  {look.at.astimezone():%H:%M:%S}  {len(look.running)} running, {len(look.pending)} waiting",
        ),
        *_part("pools", make_table(_POOL_HEADS, (_pool_row(each, found) for each, found in look.pools))),
    ]
    if look.nodes is not None:
        shown += _list(console, "machines", look.nodes, node_columns(pools), room)
    shown += _list(console, "limits", sorted(look.usage, key=_fullness, reverse=True), _USAGE_COLUMNS, room)
    shown += _list(console, "waiting", look.pending, JOB_COLUMNS, room)
    shown += _list(console, "running", look.running[::-1], JOB_COLUMNS, room)
    return Group(*shown)


def _part(title: str, body: RenderableType) -> Iterable[RenderableType]:
    yield Text(f"\n{title}", style="bold")
    yield body


def _list(
    console: Console, title: str, items: Sequence[Item], columns: Sequence[Column[Item]], room: int
) -> Iterable[RenderableType]:
    if not items:
        return
    yield from _part(title, fitting_table(console, items[:room], columns))
    if len(items) > room:
        more = f"{len(items) - room} more" + (" or further ones" if len(items) == _LOOKED_AT else "")
        yield Text(more, style="dim")


_POOL_HEADS = [("pool", False), ("machines", True), ("cores", True), ("memory", True), ("devices", False)]


def _pool_row(each: PoolView, found: PoolCapacity) -> list[str]:
    hosts = {line.resource: line for line in found.hosts}
    cpu, memory = hosts.get("cpu"), hosts.get("memory")
    devices = (f"{show_milli(line.allocated)} of {show_milli(line.total)} {line.flavor}" for line in found.devices)
    return [
        each.name,
        f"{found.nodes.get('schedulable', 0)} of {sum(found.nodes.values()) - found.nodes.get('schedulable', 0)}",
        "-" if cpu is None else f"{show_milli(cpu.allocated)} of {show_milli(cpu.total)}",
        "-" if memory is None else f"{show_mib(memory.allocated)} of {show_mib(memory.total)}",
        ", ".join(devices) or "-",
    ]


def _fullness(line: UsageLine) -> tuple[bool, float]:
    return line.blocked, line.used / line.hard if line.hard else 0.0


_USAGE_COLUMNS: list[Column[UsageLine]] = [
    Column("virtual pool", lambda line: line.virtual_pool),
    Column("of", lambda line: line.flavor or line.resource),
    Column("used", full_of),
]


def register(app: typer.Typer) -> None:
    """Adds this command to the command line."""
    app.command("top", rich_help_panel=JOBS)(top)
