"""Prices: `price ...`."""

from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from millpond.cli.amounts import parse_pairs, parse_seconds, show_seconds, show_time
from millpond.cli.bills import exact
from millpond.cli.rendering import Column, show_done, show_list
from millpond.cli.session import MONEY, Output, OutputOption, connect
from millpond_contracts.bodies.bills import PriceLine, PriceVersionSpec, PriceVersionView
from millpond_contracts.quantities import ExactDecimal

_SKUS = {"cpu": "cpu/*/on_demand", "memory": "memory/*/on_demand", "device": "device/*/on_demand"}

price = typer.Typer(name="price", help="Publish and look at prices.", no_args_is_help=True)


def _standing(each: PriceVersionView) -> str:
    mark = " (example)" if each.example else ""
    return f"{show_time(each.valid_from)}{mark}"


_COLUMNS: list[Column[PriceVersionView]] = [
    Column("in force from", _standing),
    Column("until", lambda each: "a later version" if each.valid_to is None else show_time(each.valid_to)),
    Column("for", lambda each: "everybody" if each.tenant_id is None else str(each.tenant_id)),
    Column("at least", lambda each: show_seconds(each.minimum_seconds), is_right=True),
    Column("prices per hour", lambda each: _lines(each)),
    Column("note", lambda each: each.note or "-"),
    Column("id", lambda each: str(each.price_version_id), is_extra=True),
]


def _lines(each: PriceVersionView) -> str:
    return "\n".join(f"{line.sku} {exact(line.per_hour)} {each.currency}" for line in each.lines)


@price.command("list")
def list_prices(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    """List versions of prices: the public ones and, for a tenant, its own."""
    found = connect(context).price_books.list()
    show_list(output, found, _COLUMNS, lambda each: each.price_version_id, empty="no prices, so nothing costs anything")


@price.command("set")
def set_prices(
    context: typer.Context,
    prices: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT=PRICE...",
            help="Per hour: cpu=0.10 (a core), memory=0.02 (a GiB), h100-sxm=20, device=5 (any other).",
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A whole version as JSON instead.")] = None,
    tenant: Annotated[str | None, typer.Option(help="For this tenant alone (name or id).")] = None,
    currency: Annotated[str, typer.Option(help="Of all prices.")] = "CNY",
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="RFC 3339, in the future. Default: now.")
    ] = None,
    minimum: Annotated[str, typer.Option(metavar="TIME", help="Each allocation costs at least so long.")] = "60s",
    note: Annotated[str, typer.Option(help="Why.")] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Publish prices: they are in force until the next version, and never change."""
    client = connect(context)
    if file is not None:
        spec = PriceVersionSpec.model_validate_json(_read(file))
    else:
        spec = PriceVersionSpec(
            currency=currency,
            valid_from=None if start is None else _instant(start),
            minimum_seconds=parse_seconds(minimum, "--minimum"),
            lines=parse_prices(prices or []),
            tenant_id=None if tenant is None else client.tenants.id_of(tenant),
            note=note,
        )
    made = client.price_books.publish(spec)
    show_done(
        output, made, made.price_version_id, f"{len(made.lines)} prices in force from {show_time(made.valid_from)}"
    )


def parse_prices(texts: list[str]) -> tuple[PriceLine, ...]:
    """`cpu=0.10 memory=0.02 h100-sxm=20 device=5` as lines of a price version, on demand.

    Raises:
        typer.BadParameter: one is no price, or there is none.
    """
    if not texts:
        raise typer.BadParameter("say what costs how much, such as: cpu=0.10 memory=0.02 h100-sxm=20")
    lines = []
    for what, amount in parse_pairs(texts, "WHAT=PRICE").items():
        sku = what if what.count("/") == 2 else _SKUS.get(what, f"device/{what}/on_demand")
        lines.append(PriceLine(sku=sku, per_hour=_decimal(amount)))
    return tuple(lines)


def _decimal(text: str) -> ExactDecimal:
    try:
        amount = Decimal(text)
    except ArithmeticError as error:
        raise typer.BadParameter(f"expected an amount such as 0.10, found {text[:40]!r}") from error
    if not amount.is_finite():
        raise typer.BadParameter(f"expected an amount such as 0.10, found {text[:40]!r}")
    return ExactDecimal(amount)


def _instant(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"expected an instant such as 2026-12-01T00:00:00Z, found {text[:40]!r}", param_hint="--from"
        ) from error
    return at if at.tzinfo is not None else at.astimezone()


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {file}: {error}", param_hint="--file") from error


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(price, rich_help_panel=MONEY)
