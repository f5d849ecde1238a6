"""Machines: `nodes`, `node ...`, `devices`."""

from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from millpond.cli.amounts import parse_pairs, parse_seconds, show_age, show_mib, show_milli, show_time
from millpond.cli.completing import complete_nodes, complete_pools
from millpond.cli.rendering import (
    Column,
    fitting_table,
    heading,
    list_table,
    show_done,
    show_list,
    show_one,
    show_place,
    state,
    words,
)
from millpond.cli.session import MACHINES, LabelFilter, Output, OutputOption, connect, out
from millpond.client.client import Client
from millpond_contracts.bodies.devices import ConditionView, DeviceListing
from millpond_contracts.bodies.nodes import DeviceView, Market, NodeChange, NodeState, NodeView
from millpond_contracts.ids import PoolId
from millpond_contracts.resources import SIMULATED_TAINT, DeviceHealth

node = typer.Typer(name="node", help="Look at a machine; take it out of work and back.", no_args_is_help=True)

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Its name or its id.", autocompletion=complete_nodes)]
PoolOption = Annotated[str | None, typer.Option(help="Only this pool's (name or id).", autocompletion=complete_pools)]


def pool_names(client: Client) -> dict[PoolId, str]:
    """Pool -> name."""
    return {pool.pool_id: pool.name for pool in client.pools.list()}


def nodes(
    context: typer.Context,
    pool: PoolOption = None,
    state_: Annotated[
        list[NodeState] | None, typer.Option("--state", help="Only nodes in this state; may be repeated.")
    ] = None,
    label: LabelFilter = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List machines: their state and what they have."""
    client = connect(context)
    pool_id = None if pool is None else client.pools.id_of(pool)
    found = list(client.nodes.list(pool_id=pool_id, state=tuple(state_ or ()), label=tuple(label or ())))
    names = pool_names(client) if output is Output.TABLE else {}
    empty = "no machines yet; `millpond join-token create` lets one join"
    show_list(output, found, node_columns(names), lambda each: each.node_id, empty=empty)


def node_columns(names: dict[PoolId, str]) -> list[Column[NodeView]]:
    """The columns of `nodes`."""
    return [
        Column("name", lambda each: each.name),
        Column("state", node_state),
        Column("pool", lambda each: names.get(each.pool_id, str(each.pool_id))),
        Column("arch", lambda each: each.arch or "?"),
        Column("cores", lambda each: show_milli(each.cpu_milli), is_right=True),
        Column("memory", lambda each: show_mib(each.memory_mib), is_right=True),
        Column("devices", lambda each: devices_in_short(each.devices)),
        Column("heard of", _heard_of, is_right=True),
        Column("id", lambda each: str(each.node_id), is_extra=True),
    ]


def _heard_of(each: NodeView) -> str:
    return "-" if each.last_heartbeat_at is None else f"{show_age(each.last_heartbeat_at)} ago"


def node_state(each: NodeView) -> Text:
    """The state, whether the machine is a simulated one, and why nothing new may start there."""
    shown = state(each.state)
    if any(taint.key == SIMULATED_TAINT for taint in each.taints):
        shown = Text.assemble(shown, (", simulated", "dim"))
    if each.cordon_reasons:
        shown = Text.assemble(shown, (f", no new work ({', '.join(each.cordon_reasons)})", "yellow"))
    return shown


def devices_in_short(devices: tuple[DeviceView, ...]) -> str:
    """`8 x h100-sxm`, unhealthy ones told apart."""
    counts: dict[str, int] = {}
    for each in devices:
        suffix = " in partitions" if each.partition_mode else ""
        suffix += "" if each.health is DeviceHealth.HEALTHY else f" ({each.health})"
        counts[each.flavor + suffix] = counts.get(each.flavor + suffix, 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "-"


@node.command("show")
def show_node(context: typer.Context, name: NodeArgument, output: OutputOption = Output.TABLE) -> None:
    """Show one machine with its devices and what was found wrong."""
    client = connect(context)
    found = client.nodes.get(name)
    fields: list[tuple[str, RenderableType]] = [
        ("name", found.name),
        ("id", str(found.node_id)),
        ("state", Text.assemble(node_state(found), f" for {show_age(found.state_since)}")),
        ("pool", pool_names(client).get(found.pool_id, str(found.pool_id))),
        ("paid for", words(found.market)),
        ("cores", show_milli(found.cpu_milli)),
        ("memory", show_mib(found.memory_mib)),
        ("arch", found.arch or "not known"),
        ("runs jobs as", ", ".join(found.runtimes) or "-"),
        ("tenants kept apart by", found.isolation.value),
        ("heard of", show_time(found.last_heartbeat_at)),
    ]
    if found.drain is not None:
        emptied = "empty" if found.drain.emptied_at else f"until {show_time(found.drain.deadline)}"
        fields.append(("drain", emptied))
    place = show_place(found.topology)
    if place:
        fields.append(("stands in", place))
    if found.taints:
        marks = [taint.key if taint.value is None else f"{taint.key}={taint.value}" for taint in found.taints]
        fields.append(("taints", ", ".join(marks)))
    if found.labels:
        fields.append(("labels", ", ".join(f"{key}={value}" for key, value in found.labels.items())))
    show_one(output, found, found.node_id, fields)
    if output is not Output.TABLE:
        return
    if found.devices:
        heading(out(), "devices")
        console = out()
        console.print(fitting_table(console, found.devices, _DEVICE_COLUMNS))
    conditions = list(client.nodes.conditions(found.node_id))
    if conditions:
        heading(out(), "what was found wrong")
        out().print(list_table(conditions, _CONDITION_COLUMNS))


_DEVICE_COLUMNS: list[Column[DeviceView]] = [
    Column("device", lambda each: str(each.index), is_right=True),
    Column("flavor", lambda each: each.flavor),
    Column("model", lambda each: each.model or "?"),
    Column("memory", lambda each: "?" if each.memory_mib is None else show_mib(each.memory_mib), is_right=True),
    Column("partitions", lambda each: ", ".join(each.profiles) or each.partition_mode or "-"),
    Column("health", lambda each: state(each.health)),
    Column("why", lambda each: each.health_reason or "-"),
    Column("identity", lambda each: each.identity),
    Column("id", lambda each: str(each.device_id), is_extra=True),
]
_CONDITION_COLUMNS: list[Column[ConditionView]] = [
    Column("since", lambda each: show_time(each.opened_at)),
    Column("until", lambda each: "now" if each.closed_at is None else show_time(each.closed_at)),
    Column("what", lambda each: words(each.name)),
    Column("where", lambda each: each.target),
    Column("why", lambda each: each.evidence),
]
_LISTING_COLUMNS: list[Column[DeviceListing]] = [
    Column("node", lambda each: each.node_name),
    Column("device", lambda each: str(each.index), is_right=True),
    Column("flavor", lambda each: each.flavor),
    Column("model", lambda each: each.model or "?"),
    Column("memory", lambda each: "?" if each.memory_mib is None else show_mib(each.memory_mib), is_right=True),
    Column("health", lambda each: state(each.health) if each.reported else state("lost")),
    Column("why", lambda each: each.health_reason or ("-" if each.reported else "its node no longer reports it")),
    Column("id", lambda each: str(each.device_id), is_extra=True),
]


def devices(
    context: typer.Context,
    pool: PoolOption = None,
    node_: Annotated[
        str | None, typer.Option("--node", help="Only this machine's (name or id).", autocompletion=complete_nodes)
    ] = None,
    flavor: Annotated[str | None, typer.Option(help="Only this flavor.")] = None,
    health: Annotated[DeviceHealth | None, typer.Option(help="Only devices in this health.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List accelerators with their place and health."""
    client = connect(context)
    found = client.devices.list(
        pool_id=None if pool is None else client.pools.id_of(pool),
        node_id=None if node_ is None else client.nodes.get(node_).node_id,
        flavor=flavor,
        health=health,
    )
    show_list(output, found, _LISTING_COLUMNS, lambda each: each.device_id, empty="no accelerators on any machine")


@node.command()
def cordon(context: typer.Context, name: NodeArgument, output: OutputOption = Output.TABLE) -> None:
    """Let nothing new start on a machine; what runs goes on."""
    client = connect(context)
    view = client.nodes.cordon(client.nodes.get(name).node_id)
    show_done(
        output,
        view,
        view.node_id,
        f"{view.name}: nothing new starts there; `millpond node uncordon {view.name}` takes it back",
    )


@node.command()
def uncordon(context: typer.Context, name: NodeArgument, output: OutputOption = Output.TABLE) -> None:
    """Let new work start on a machine again (takes back cordon, drain and quarantine)."""
    client = connect(context)
    view = client.nodes.uncordon(client.nodes.get(name).node_id)
    left = "" if not view.cordon_reasons else f", but still: {', '.join(view.cordon_reasons)}"
    show_done(output, view, view.node_id, f"{view.name}: takes new work again{left}")


@node.command()
def drain(
    context: typer.Context,
    name: NodeArgument,
    deadline: Annotated[str, typer.Option(metavar="TIME", help="Stop what is left after 15m, 2h, 1d.")] = "1h",
    output: OutputOption = Output.TABLE,
) -> None:
    """Empty a machine: nothing new starts, and at the deadline what is left is stopped."""
    client = connect(context)
    seconds = parse_seconds(deadline, "--deadline")
    view = client.nodes.drain(client.nodes.get(name).node_id, deadline_seconds=seconds)
    until = show_time(None if view.drain is None else view.drain.deadline)
    show_done(
        output,
        view,
        view.node_id,
        f"{view.name}: being emptied until {until}; watch it with `millpond node show {view.name}`",
    )


@node.command()
def move(
    context: typer.Context,
    name: NodeArgument,
    pool: Annotated[
        str, typer.Argument(metavar="POOL", help="Where it goes (name or id).", autocompletion=complete_pools)
    ],
    deadline: Annotated[str, typer.Option(metavar="TIME", help="Stop what is left after 15m, 2h, 1d.")] = "1h",
    output: OutputOption = Output.TABLE,
) -> None:
    """Move a machine to another pool once it is empty."""
    client = connect(context)
    target = client.pools.get(pool)
    seconds = parse_seconds(deadline, "--deadline")
    view = client.nodes.move(client.nodes.get(name).node_id, target.pool_id, deadline_seconds=seconds)
    show_done(output, view, view.node_id, f"{view.name}: enters {target.name} once it is empty")


@node.command()
def market(
    context: typer.Context,
    name: NodeArgument,
    how: Annotated[Market, typer.Argument(help="committed = paid for whether it is used or not; on_demand = by use.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Say how a machine is paid for; `millpond report cost` tells both apart."""
    client = connect(context)
    view = client.nodes.change(client.nodes.get(name).node_id, NodeChange(market=how))
    show_done(output, view, view.node_id, f"{view.name}: {words(view.market)}")


@node.command("label")
def label_node(
    context: typer.Context,
    name: NodeArgument,
    labels: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE|KEY-", help="A label to set, or with a dash at its end to take back."),
    ],
    output: OutputOption = Output.TABLE,
) -> None:
    """Label a machine; `region`, `zone`, `rack` and `interconnect_domain` say where it stands."""
    client = connect(context)
    taken_back = [text for text in labels if text.endswith("-") and "=" not in text]
    wanted: dict[str, str | None] = {text[:-1]: None for text in taken_back}
    wanted |= parse_pairs([text for text in labels if text not in taken_back], "KEY=VALUE")
    view = client.nodes.change(client.nodes.get(name).node_id, NodeChange(labels=wanted))
    place = show_place(view.topology)
    told = ", ".join(f"{key}={value}" for key, value in view.labels.items()) or "no labels"
    show_done(output, view, view.node_id, f"{view.name}: {told}{place and f'; stands in {place}'}")


@node.command()
def remove(context: typer.Context, name: NodeArgument) -> None:
    """Remove a machine that holds nothing."""
    client = connect(context)
    found = client.nodes.get(name)
    client.nodes.remove(found)
    out().print(f"removed {found.name}")


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.command("nodes", rich_help_panel=MACHINES)(nodes)
    app.add_typer(node, rich_help_panel=MACHINES)
    app.command("devices", rich_help_panel=MACHINES)(devices)
