"""How tasks are packed in a pool: `packing propose`, `list`, `show`, `accept`, `withdraw`."""

from typing import Annotated

import typer

from millpond.cli.lending import PoolArgument
from millpond.cli.rendering import Column, show_done, show_list
from millpond.cli.session import MACHINES, Output, OutputOption, connect
from millpond_contracts.bodies.packings import PackingSetting, PackingView
from millpond_contracts.ids import PackingId

packing = typer.Typer(
    name="packing",
    help="Pack a pool better: replay its own jobs under several settings, and accept the best.",
    no_args_is_help=True,
)

PackingArgument = Annotated[str, typer.Argument(metavar="ID", help="The proposal's id.")]


def _parse(text: str) -> PackingId:
    try:
        return PackingId.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="ID") from error


def _show_setting(setting: PackingSetting | None) -> str:
    if setting is None:
        return "-"
    shadow = f", shadow {setting.shadow_permille}" if setting.shadow_permille else ""
    return f"quantum {setting.quantum_milli}, core {setting.core_price}, device {setting.device_price}{shadow}"


def _show_gain(view: PackingView) -> str:
    return "-" if view.gain_points is None else f"{view.gain_points:+.2f}"


_COLUMNS: list[Column[PackingView]] = [
    Column("state", lambda each: each.state.value),
    Column("setting", lambda each: _show_setting(each.setting)),
    Column("gain in points", _show_gain, is_right=True),
    Column("jobs", lambda each: "-" if each.jobs is None else str(each.jobs), is_right=True),
    Column("nodes", lambda each: "-" if each.nodes is None else str(each.nodes), is_right=True),
    Column("accepted by", lambda each: each.accepted_by or "-"),
    Column("error", lambda each: each.error or "-", is_extra=True),
    Column("id", lambda each: str(each.packing_id)),
]


@packing.command("propose")
def propose_packing(context: typer.Context, pool: PoolArgument, output: OutputOption = Output.TABLE) -> None:
    """Replay a pool's newest jobs on its own nodes, in the background."""
    client = connect(context)
    made = client.packings.create(client.pools.id_of(pool))
    sentence = f"{made.packing_id} is being computed; `millpond packing show {made.packing_id}` tells what it gained"
    show_done(output, made, made.packing_id, sentence)


@packing.command("list")
def list_packings(context: typer.Context, pool: PoolArgument, output: OutputOption = Output.TABLE) -> None:
    """List a pool's proposals; the accepted one is in force."""
    client = connect(context)
    found = list(client.packings.list(pool_id=client.pools.id_of(pool)))
    empty = "no proposals: the pool has the default setting; `millpond packing propose` asks for one"
    show_list(output, found, _COLUMNS, lambda each: each.packing_id, empty=empty)


@packing.command("show")
def show_packing(context: typer.Context, packing_id: PackingArgument, output: OutputOption = Output.TABLE) -> None:
    """Show a proposal: its setting, what the replays gained by it, and whether it still fits what comes."""
    found = connect(context).packings.get(_parse(packing_id))
    sentence = f"{found.state.value}: {_show_setting(found.setting)}, {_show_gain(found)} points of all devices"
    if found.setting is None:
        sentence = f"{found.state.value}: {found.error or 'not computed yet'}"
    elif found.is_stale:
        sentence += f"; {(found.demand_change_permille or 0) / 10:g} % of what comes changed since: propose again"
    show_done(output, found, found.packing_id, sentence)


@packing.command("accept")
def accept_packing(context: typer.Context, packing_id: PackingArgument, output: OutputOption = Output.TABLE) -> None:
    """Put a proposal in force, within a minute."""
    done = connect(context).packings.accept(_parse(packing_id))
    show_done(output, done, done.packing_id, f"in force within a minute: {_show_setting(done.setting)}")


@packing.command("withdraw")
def withdraw_packing(context: typer.Context, packing_id: PackingArgument, output: OutputOption = Output.TABLE) -> None:
    """Give the pool the default setting again."""
    done = connect(context).packings.withdraw(_parse(packing_id))
    show_done(output, done, done.packing_id, "the pool has the default setting within a minute")


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(packing, rich_help_panel=MACHINES)
