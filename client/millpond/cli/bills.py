"""Money: `bill`, `export`, `exports`."""

from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

import typer
from rich.text import Text

from millpond.cli.amounts import parse_month, show_seconds
from millpond.cli.completing import complete_tenants
from millpond.cli.rendering import (
    Column,
    field_grid,
    heading,
    list_table,
    make_table,
    show_json,
    show_list,
    state,
    words,
)
from millpond.cli.session import MONEY, Output, OutputOption, connect, err, out
from millpond.client.client import Client
from millpond_contracts.bodies.bills import ChargeView, ExportFormat, ExportSpec, ExportView, StatementView
from millpond_contracts.bodies.tenants import TenantView
from millpond_contracts.ids import ExportId, JobId
from millpond_contracts.quantities import Money

TenantOption = Annotated[
    str | None,
    typer.Option(
        "--tenant", help="Whose (name or id); a tenant's own key needs none.", autocompletion=complete_tenants
    ),
]
PeriodOption = Annotated[
    str | None, typer.Option("--period", metavar="MONTH", help="Such as 2026-11. Default: this month.")
]
_SHOWN_LINES = 40


def bill(
    context: typer.Context,
    tenant: TenantOption = None,
    period: PeriodOption = None,
    lines: Annotated[bool, typer.Option("--lines", help="Every line behind every figure, not jobs' sums.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what a tenant owes, and what is behind it.

    The total, what it is made of, and the jobs or, with --lines, the lines behind it; nothing is rounded but the total.
    An operator who names no tenant sees everybody's total.
    """
    client = connect(context)
    if tenant is None and client.me().tenant_id is None:
        _show_all(client, output)
        return
    payer = find_payer(client, tenant)
    start = None if period is None else period_start(payer, period)
    statement = client.statements.current(tenant_id=payer.tenant_id, period_start=start)
    charges = (
        list(client.charges.list(tenant_id=payer.tenant_id, period_start=start))
        if lines or output is not Output.ID
        else []
    )
    if output is Output.ID:
        typer.echo(str(statement.statement_id or statement.state))
    elif output is Output.JSON:
        document = statement.model_dump(mode="json")
        show_json(document | ({"charges": [each.model_dump(mode="json") for each in charges]} if lines else {}))
    else:
        show_statement(payer, statement)
        _show_lines(charges) if lines else _show_jobs(charges, statement)


def find_payer(client: Client, tenant: str | None) -> TenantView:
    """The tenant that is meant: the one named, else the key's own."""
    if tenant is not None:
        return client.tenants.get(tenant)
    own = client.me().tenant_id
    if own is None:
        raise typer.BadParameter("an operator says whose: --tenant NAME", param_hint="--tenant")
    return client.tenants.get(own)


def period_start(payer: TenantView, period: str) -> datetime:
    """Where a month starts for a tenant: at midnight in its zone."""
    year, month = parse_month(period, "--period")
    return datetime(year, month, 1, tzinfo=ZoneInfo(payer.timezone))


def _show_all(client: Client, output: Output) -> None:
    payers = list(client.tenants.list())
    statements = [client.statements.current(tenant_id=payer.tenant_id) for payer in payers]
    if output is Output.JSON:
        show_json([each.model_dump(mode="json") for each in statements])
    elif output is Output.ID:
        for payer in payers:
            typer.echo(str(payer.tenant_id))
    elif not payers:
        out().print("no tenants, so nothing is owed", style="dim")
    else:
        rows = [
            (
                payer.name,
                each.period_start.astimezone(ZoneInfo(each.timezone)).strftime("%Y-%m"),
                state(each.state),
                str(each.lines),
                show_money(each.total),
            )
            for payer, each in zip(payers, statements, strict=True)
        ]
        heads = [("tenant", False), ("month", False), ("state", False), ("lines", True), ("total", True)]
        out().print(make_table(heads, rows))
        out().print("`millpond bill --tenant NAME --lines` shows what is behind a total", style="dim")


def show_money(money: Money) -> str:
    """An exact amount with its currency; nothing is rounded."""
    return f"{exact(money.amount)} {money.currency}"


def exact(amount: Decimal) -> str:
    """A decimal in plain notation with at least two digits after the point."""
    text = format(amount, "f")
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction.rstrip('0').ljust(2, '0')}"


def show_statement(payer: TenantView, statement: StatementView) -> None:
    """Prints a statement: what, for when, and the sum of its parts."""
    zone = ZoneInfo(statement.timezone)
    first, last = statement.period_start.astimezone(zone), statement.period_end.astimezone(zone)
    console = out()
    console.print(Text.assemble("statement of ", (payer.name, "bold"), ", ", state(statement.state)))
    fields = [
        ("period", f"{first:%Y-%m-%d} to {last:%Y-%m-%d} ({statement.timezone})"),
        ("as of", f"{statement.as_of.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"),
        ("made of", f"{statement.lines} lines, {show_seconds(statement.seconds)} of use"),
    ]
    if statement.number is not None:
        fields.append(("number", str(statement.number)))
    if statement.digest is not None:
        fields.append(("digest", statement.digest))
    console.print(field_grid(fields))
    rows = [[words(kind), show_money(amount)] for kind, amount in statement.subtotals.items()]
    rows.append(["total", show_money(statement.total)])
    console.print(make_table([("", False), ("amount", True)], rows))


def _show_jobs(charges: list[ChargeView], statement: StatementView) -> None:
    sums: dict[tuple[JobId | None, str], list[ChargeView]] = {}
    for charge in charges:
        sums.setdefault((charge.job_id, charge.job_name or "-"), []).append(charge)
    if not sums:
        return
    heading(out(), "by job")
    rows = [
        [
            name,
            str(len(found)),
            f"{exact(sum((each.amount.amount for each in found), Decimal()))} {statement.currency}",
            str(job_id or "-"),
        ]
        for (job_id, name), found in sums.items()
    ]
    shown = rows[-_SHOWN_LINES:]
    out().print(make_table([("job", False), ("lines", True), ("amount", True), ("id", False)], shown))
    if len(rows) > len(shown):
        out().print(f"the newest {len(shown)} of {len(rows)} jobs; -o json has all", style="dim")


def _show_lines(charges: list[ChargeView]) -> None:
    heading(out(), "lines")
    out().print(list_table(charges, CHARGE_COLUMNS))


def _moment(at: datetime | None) -> str:
    return "-" if at is None else f"{at:%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}Z"


CHARGE_COLUMNS: list[Column[ChargeView]] = [
    Column("job", lambda each: each.job_name or "-"),
    Column("for", lambda each: words(each.kind)),
    Column("what", lambda each: each.sku or "-"),
    Column("quantity", lambda each: "-" if each.quantity is None else exact(each.quantity), is_right=True),
    Column("seconds", lambda each: "-" if each.seconds is None else str(each.seconds), is_right=True),
    Column("per hour", lambda each: "-" if each.per_hour is None else exact(each.per_hour), is_right=True),
    Column("amount", lambda each: show_money(each.amount), is_right=True),
    Column("from", lambda each: _moment(each.start_at)),
    Column("to", lambda each: _moment(each.end_at)),
]


def export(
    context: typer.Context,
    tenant: TenantOption = None,
    period: PeriodOption = None,
    kind: Annotated[ExportFormat, typer.Option("--format", help="How it is written.")] = ExportFormat.CSV,
    to: Annotated[Path | None, typer.Option(help="Write it here. Default: standard output.")] = None,
    existing: Annotated[
        str | None, typer.Option("--id", metavar="EXPORT", help="Download an export that was ordered before.")
    ] = None,
) -> None:
    """Export the lines of a bill as CSV or JSON lines.

    A download that broke off goes on where it stopped with --id and the same --to; what arrives is checked.
    """
    client = connect(context)
    export_id = _order(client, tenant, period, kind) if existing is None else _export_id(existing)
    ready = client.exports.wait(export_id)
    if to is None:
        for block in client.exports.stream(export_id):
            typer.echo(block, nl=False)
        return
    try:
        client.exports.save(export_id, to)
    except OSError as error:
        raise typer.BadParameter(f"{to} cannot be written: {error}", param_hint="--to") from error
    err().print(f"{ready.rows} lines in {to}")


def _order(client: Client, tenant: str | None, period: str | None, kind: ExportFormat) -> ExportId:
    payer = find_payer(client, tenant)
    start = None if period is None else period_start(payer, period)
    spec = ExportSpec(tenant_id=payer.tenant_id, period_start=start, format=kind)
    export_id = client.exports.create(spec).export_id
    err().print(f"building {export_id}; should this be broken off, go on with --id {export_id}", style="dim")
    return export_id


def _export_id(text: str) -> ExportId:
    try:
        return ExportId.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--id") from error


def exports(context: typer.Context, tenant: TenantOption = None, output: OutputOption = Output.TABLE) -> None:
    """List exports: how far they are, and how long their files are kept."""
    client = connect(context)
    tenant_id = None if tenant is None else client.tenants.id_of(tenant)
    found = list(client.exports.list(tenant_id=tenant_id))
    show_list(
        output, found, _EXPORT_COLUMNS, lambda each: each.export_id, empty="no exports; `millpond export` makes one"
    )


_EXPORT_COLUMNS: list[Column[ExportView]] = [
    Column("export", lambda each: str(each.export_id)),
    Column("state", lambda each: state(each.state)),
    Column("format", lambda each: each.format.value),
    Column("from", lambda each: f"{each.period_start:%Y-%m-%d %H:%MZ}"),
    Column("lines", lambda each: "-" if each.rows is None else str(each.rows), is_right=True),
    Column("bytes", lambda each: "-" if each.bytes is None else str(each.bytes), is_right=True),
    Column("kept until", lambda each: "-" if each.expires_at is None else f"{each.expires_at:%Y-%m-%d}"),
    Column("why", lambda each: each.error or "-"),
]


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.command("bill", rich_help_panel=MONEY)(bill)
    app.command("export", rich_help_panel=MONEY)(export)
    app.command("exports", rich_help_panel=MONEY)(exports)
