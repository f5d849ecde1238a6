"""`status`: how each service is, in words, and what to do."""

from typing import Annotated

import typer
from rich.text import Text

from millpond.cli.amounts import show_age
from millpond.cli.failures import REFUSED
from millpond.cli.rendering import make_table, show_json, state
from millpond.cli.session import IMPATIENCE, STACK, Output, OutputOption, connect, out
from millpond.client.answers import HealthPart, ServiceHealth
from millpond.client.client import Client
from millpond.client.errors import MillpondError, Unreachable
from millpond.client.events import SERVICES

_DOES = {
    "registry": "what exists",
    "quota": "what a tenant may hold",
    "scheduler": "where it runs, and why",
    "billing": "what it cost",
    "autoscaler": "how much there should be",
}
_REMEDIES = {
    "database": "look at PostgreSQL; nothing is lost, and the service goes on by itself once it answers",
    "schema": "run `millpond migrate`",
    "keys": "the service needs quota to check keys; see `millpond status quota`",
    "worker": "see the worker's log in the stack's `logs` folder; it is started again by itself",
    "service": "see its log in the stack's `logs` folder; it is started again by itself",
}


def status(
    context: typer.Context,
    service: Annotated[str | None, typer.Argument(help="Only this one. Default: all.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Tell how each service is, why, and what to do.

    Exits with 1 unless all are well.
    """
    client = connect(context, IMPATIENCE)
    found = find_health(client, (service,) if service else SERVICES)
    if output is Output.JSON:
        show_json([each.model_dump(mode="json") for each in found])
    elif output is Output.ID:
        for each in found:
            typer.echo(f"{each.service} {each.status}")
    else:
        rows = [(each.service, state(each.status), _DOES.get(each.service, "-"), _why(each)) for each in found]
        out().print(make_table([("service", False), ("is", False), ("answers", False), ("why", False)], rows))
        for part in {name for each in found for name, value in each.parts.items() if not value.ok}:
            out().print(Text(f"{part}: {_REMEDIES.get(part, 'see the logs')}"))
    if any(each.status != "ok" for each in found):
        raise typer.Exit(REFUSED)


def find_health(client: Client, services: tuple[str, ...]) -> list[ServiceHealth]:
    """The health of each service; one that does not answer behind a living address is down.

    Raises:
        Unreachable: nothing answers at all.
    """
    found, silent = [], 0
    for service in services:
        try:
            found.append(client.health.get(service))
        except MillpondError as error:
            silent += isinstance(error, Unreachable)
            if silent == len(services):
                raise
            part = HealthPart(ok=False, reason=error.detail)
            found.append(ServiceHealth(service=service, status="down", ready=False, parts={"service": part}))
    return found


def _why(each: ServiceHealth) -> str:
    reasons = [f"{name}: {part.reason or 'not well'}{_since(part)}" for name, part in each.parts.items() if not part.ok]
    return "; ".join(reasons) or "-"


def _since(part: HealthPart) -> str:
    return "" if part.since is None else f" (for {show_age(part.since)})"


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.command("status", rich_help_panel=STACK)(status)
