"""What happens and what happened: `events`, `audit`."""

from typing import Annotated

import typer
from rich.text import Text

from millpond.cli.amounts import show_time
from millpond.cli.rendering import Column, show_list
from millpond.cli.session import STACK, Output, OutputOption, connect, out
from millpond.client.events import SERVICES
from millpond_contracts.bodies.audit import AuditView
from millpond_contracts.events.envelope import Envelope


def events(
    context: typer.Context,
    service: Annotated[str, typer.Option(help=f"One of {', '.join(SERVICES)}.")] = "scheduler",
    after: Annotated[int | None, typer.Option(min=0, help="Begin after this number; 0 = from the first kept.")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Go on with what happens from now on.")] = True,
    output: OutputOption = Output.TABLE,
) -> None:
    """Watch what happens, as it happens.

    A broken connection is taken up where it broke.
    """
    _check_service(service)
    client = connect(context)
    for envelope in client.events.watch(service, after=after, follow=follow):
        if output is Output.JSON:
            typer.echo(envelope.model_dump_json())
        elif output is Output.ID:
            typer.echo(str(envelope.seq))
        else:
            out().print(_line(envelope))


def _line(envelope: Envelope) -> Text:
    what = envelope.type.split(".")[1].replace("_", " ")
    state = envelope.body.get("state")
    return Text.assemble(
        (f"{envelope.seq:>6}  ", "dim"),
        f"{show_time(envelope.happened_at)}  ",
        (what, "bold"),
        f" {state}" if isinstance(state, str) else "",
        (f"  {envelope.subject}", "dim"),
    )


_COLUMNS: list[Column[AuditView]] = [
    Column("when", lambda each: show_time(each.at)),
    Column("who", lambda each: f"{each.actor} ({each.role})"),
    Column("what", lambda each: each.action),
    Column("which", lambda each: each.object),
    Column("request", lambda each: each.request_id or "-"),
]


def audit(
    context: typer.Context,
    service: Annotated[str, typer.Option(help=f"One of {', '.join(SERVICES)}.")] = "quota",
    object_: Annotated[str | None, typer.Option("--object", help="Only what was done to this id.")] = None,
    actor: Annotated[str | None, typer.Option(help="Only what this key or token did.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List who did what, oldest first."""
    _check_service(service)
    rows = connect(context).audit.list(service, object_=object_, actor=actor)
    show_list(output, rows, _COLUMNS, lambda each: each.seq, empty="nothing was done yet")


def _check_service(service: str) -> None:
    if service not in SERVICES:
        raise typer.BadParameter(
            f"expected one of {', '.join(SERVICES)}, found {service[:40]!r}", param_hint="--service"
        )


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.command("events", rich_help_panel=STACK)(events)
    app.command("audit", rich_help_panel=STACK)(audit)
