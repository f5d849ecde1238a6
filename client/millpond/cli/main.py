"""`millpond`: the entry point, and which commands there are."""

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from millpond.cli import (
    bills,
    events,
    following,
    health,
    jobs,
    joining,
    keys,
    limits,
    moving,
    nodes,
    packings,
    planning,
    pools,
    prices,
    profiles,
    reports,
    reservations,
    scaling,
    simulating,
    submitting,
    tenants,
    top,
)
from millpond.cli.failures import FriendlyGroup
from millpond.cli.session import session_of
from millpond.stack import commands as stack

app = typer.Typer(
    name="millpond",
    cls=FriendlyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        try:
            typer.echo(f"millpond {version('millpond')}")
        except PackageNotFoundError:
            typer.echo("millpond, not installed")
        raise typer.Exit


@app.callback()
def choose(
    context: typer.Context,
    profile: Annotated[
        str | None,
        typer.Option(envvar="MILLPOND_PROFILE", help="Which Millpond to talk to; see `millpond profile list`."),
    ] = None,
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Tell the version and end.")
    ] = False,
) -> None:
    """Pooled compute: submit jobs to shared machines, see why each waits or runs, and what it costs.

    Start one here with [bold]millpond up[/bold], or use one that runs with [bold]millpond login URL[/bold].
    """
    session_of(context).profile = profile


# The order is the order of the help page: what a newcomer needs first comes first.
for module in (
    submitting,
    planning,
    jobs,
    moving,
    following,
    moving,
    top,
    nodes,
    pools,
    packings,
    scaling,
    simulating,
    joining,
    tenants,
    keys,
    limits,
    reservations,
    bills,
    reports,
    prices,
):
    module.register(app)
stack.register(app)
for module in (health, profiles, events):
    module.register(app)


def main() -> None:
    """Runs the command line."""
    app()
