"""What happens and what happened: `events`, `audit`."""

import json
from functools import partial
from itertools import islice
from typing import Annotated

import typer
from rich.text import Text

from millpond.cli.amounts import parse_instant, show_time
from millpond.cli.completing import complete_keys, complete_services
from millpond.cli.rendering import Column, show_list
from millpond.cli.session import STACK, Output, OutputOption, SinceOption, UntilOption, connect, out
from millpond.client.events import SERVICES
from millpond.client.naming import find_id
from millpond_contracts.bodies.audit import AuditView
from millpond_contracts.events.envelope import Envelope
from millpond_contracts.ids import ApiKeyId

_SHOWN = 60


class Done(AuditView):
    """An audit row with the service whose trail it is from."""

    service: str


def events(
    context: typer.Context,
    service: Annotated[
        str, typer.Option(help=f"One of {', '.join(SERVICES)}.", autocompletion=complete_services)
    ] = "scheduler",
    after: Annotated[int | None, typer.Option(min=0, help="Begin after this number; 0 = from the first kept.")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Go on with what happens from now on.")] = True,
    subject: Annotated[
        str | None,
        typer.Option("--of", metavar="ID", help="Only of this object, such as an allocation, from its first."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Watch what happens, as it happens.

    A broken connection is taken up where it broke.
    """
    _check_service(service)
    client = connect(context)
    for envelope in client.events.watch(service, after=after, follow=follow, subject=subject):
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


def audit(
    context: typer.Context,
    who: Annotated[
        str | None,
        typer.Option("--who", "--actor", help="Only what this key did (name or id).", autocompletion=complete_keys),
    ] = None,
    what: Annotated[
        str | None, typer.Option("--what", metavar="ACTION", help="Only this: job.submit, or job for all of its kind.")
    ] = None,
    object_: Annotated[str | None, typer.Option("--object", metavar="ID", help="Only what was done to this.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    service: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of {', '.join(SERVICES)}; may be repeated. Default: all.", autocompletion=complete_services
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="The newest so many.")] = 50,
    output: OutputOption = Output.TABLE,
) -> None:
    """List who did what to what, the newest last."""
    services = service or SERVICES
    for each in services:
        _check_service(each)
    client = connect(context)
    ask = partial(
        client.audit.list,
        object_=object_,
        actor=None if who is None else str(find_id(ApiKeyId, who) or client.api_keys.get(who).api_key_id),
        action=what,
        since=None if since is None else parse_instant(since, "--since"),
        until=None if until is None else parse_instant(until, "--until"),
        newest_first=True,
    )
    # Each service has a trail of its own; the newest of all are among the newest of each.
    found = [Done(**dict(row), service=each) for each in services for row in islice(ask(each), limit)]
    found = sorted(found, key=lambda row: row.at)[-limit:]
    names = {str(key.api_key_id): key.name for key in client.api_keys.list()} if output is Output.TABLE else {}
    columns: list[Column[Done]] = [
        Column("when", lambda row: show_time(row.at)),
        Column("who", lambda row: f"{names.get(row.actor.partition(':')[2], row.actor)} ({row.role})"),
        Column("what", lambda row: row.action),
        Column("which", lambda row: row.object),
        Column("changed", lambda row: ", ".join(changes_of(row)) or "-"),
        Column("service", lambda row: row.service, is_extra=True),
        Column("request", lambda row: row.request_id or "-", is_extra=True),
    ]
    show_list(output, found, columns, lambda row: row.seq, empty="nothing like this was done")


def changes_of(row: AuditView) -> list[str]:
    """The fields that differ between before and after, as `name: old -> new`; none when one of the two is missing."""
    if row.before is None or row.after is None:
        return []
    names = [name for name in row.after if row.after[name] != row.before.get(name) and name != "generation"]
    return [f"{name}: {_short(row.before.get(name))} -> {_short(row.after[name])}" for name in names]


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _check_service(service: str) -> None:
    if service not in SERVICES:
        raise typer.BadParameter(
            f"expected one of {', '.join(SERVICES)}, found {service[:40]!r}", param_hint="--service"
        )


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.command("events", rich_help_panel=STACK)(events)
    app.command("audit", rich_help_panel=STACK)(audit)
