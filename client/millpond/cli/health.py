"""`status`: how each service is, in words, and what to do."""

from typing import Annotated

import typer
from rich.text import Text

from millpond.cli.amounts import show_age, show_time
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
# A service that does not answer cannot say what follows.
_SILENT = HealthPart(
    ok=False,
    effect="its requests are answered 503; tasks run on, and nothing acknowledged is lost",
    remedy="see its log in the stack's `logs` folder; one that ended is started again; see `millpond doctor`",
)


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
        for what, services in _advice(found).items():
            out().print(Text(f"{', '.join(services)}: {what}"))
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
            part = _SILENT.model_copy(update={"reason": error.detail})
            found.append(ServiceHealth(service=service, status="down", ready=False, parts={"service": part}))
    return found


def tell_part(name: str, part: HealthPart) -> str:
    """An unwell part: its name, why, and since when, as instant and duration."""
    since = "" if part.since is None else f" (since {show_time(part.since)}, {show_age(part.since)})"
    return f"{name}: {part.reason or 'not well'}{since}"


def _why(each: ServiceHealth) -> str:
    return "; ".join(tell_part(name, part) for name, part in each.parts.items() if not part.ok) or "-"


def _advice(found: list[ServiceHealth]) -> dict[str, list[str]]:
    """What follows and what to do -> the services and parts that say so, so that one cause is told once."""
    advice: dict[str, list[str]] = {}
    for each in found:
        for name, part in each.parts.items():
            if not part.ok:
                what = f"{part.effect or 'not known what follows'}\n  → {part.remedy or 'see the logs'}"
                advice.setdefault(what, []).append(f"{each.service} ({name})")
    return advice


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.command("status", rich_help_panel=STACK)(status)
