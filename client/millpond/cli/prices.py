"""Prices: `price ...`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import RenderableType

from millpond.cli.amounts import parse_pairs, parse_seconds, show_seconds, show_time
from millpond.cli.bills import exact
from millpond.cli.rendering import Column, make_table, show_done, show_list, show_one
from millpond.cli.session import MONEY, Output, OutputOption, connect, out
from millpond.client.client import Client
from millpond.client.errors import NotFound
from millpond.client.naming import find_id
from millpond_contracts.bodies.bills import PriceLine, PriceVersionSpec, PriceVersionView
from millpond_contracts.ids import PriceVersionId

_SKUS = {"cpu": "cpu/*/on_demand", "memory": "memory/*/on_demand", "device": "device/*/on_demand"}

price = typer.Typer(name="price", help="Publish and look at prices.", no_args_is_help=True)


def _standing(each: PriceVersionView) -> str:
    mark = " (example)" if each.example else ""
    return f"{show_time(each.valid_from)}{mark}"


PricesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="WHAT=PRICE", help="Per hour: cpu=0.10 (a core), memory=0.02 (a GiB), h100-sxm=20."),
]

_COLUMNS: list[Column[PriceVersionView]] = [
    Column("in force from", _standing),
    Column("until", lambda each: "a later version" if each.valid_to is None else show_time(each.valid_to)),
    Column("for", lambda each: "everybody" if each.tenant_id is None else str(each.tenant_id)),
    Column("prices", lambda each: str(len(each.lines)), is_right=True),
    Column("note", lambda each: each.note or "-"),
    Column("id", lambda each: str(each.price_version_id), is_extra=True),
]


@price.command("show")
def show_prices(
    context: typer.Context,
    version: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="From `price list`. Default: what is in force.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the prices of one version, by default of those in force for everybody."""
    client = connect(context)
    found = find_prices(client) if version is None else client.price_books.get(_version_id(version))
    fields: list[tuple[str, RenderableType]] = [
        ("in force from", _standing(found)),
        ("until", "a later version" if found.valid_to is None else show_time(found.valid_to)),
        ("each costs at least", show_seconds(found.minimum_seconds)),
        ("note", found.note or "-"),
        ("id", str(found.price_version_id)),
    ]
    show_one(output, found, found.price_version_id, fields)
    if output is Output.TABLE:
        rows = [(line.sku, f"{exact(line.per_hour)} {found.currency}", _unit(line)) for line in found.lines]
        out().print(make_table([("what", False), ("per hour", True), ("of one", False)], rows))


def find_prices(client: Client) -> PriceVersionView:
    """The public prices in force now.

    Raises:
        NotFound: there are none.
    """
    now = datetime.now(UTC)
    public = [each for each in client.price_books.list() if each.tenant_id is None and each.valid_from <= now]
    if not public:
        raise NotFound("no prices are in force, so nothing costs anything", code="client.price.none")
    return max(public, key=lambda each: each.valid_from)


def _version_id(text: str) -> PriceVersionId:
    found = find_id(PriceVersionId, text)
    if found is None:
        raise typer.BadParameter("expected an id; `millpond price list -o id` shows them", param_hint="ID")
    return found


def _unit(line: PriceLine) -> str:
    return {"cpu": "core", "memory": "GiB"}.get(line.sku.partition("/")[0], "device")


@price.command("list")
def list_prices(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    """List versions of prices: the public ones and, for a tenant, its own."""
    found = connect(context).price_books.list()
    show_list(output, found, _COLUMNS, lambda each: each.price_version_id, empty="no prices, so nothing costs anything")


@price.command("set")
def set_prices(
    context: typer.Context,
    prices: PricesArgument = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A whole version as JSON instead.")] = None,
    tenant: Annotated[str | None, typer.Option(help="For this tenant alone (name or id).")] = None,
    currency: Annotated[str | None, typer.Option(help="Of all prices; then all must be given. Default: CNY.")] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="RFC 3339, in the future. Default: now.")
    ] = None,
    minimum: Annotated[
        str | None, typer.Option(metavar="TIME", help="Each allocation costs at least so long. Default: 60s at first.")
    ] = None,
    note: Annotated[str, typer.Option(help="Why.")] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Publish prices; those that are not named stay.

    For example: millpond price set cpu=0.10 memory=0.02 h100-sxm=20 device=5

    Per hour of one core, one GiB, one device of a flavor, one device of any other flavor. A version is in force until
    the next one and never changes. From its start it holds for what runs as well; what was used before keeps its price.
    """
    client = connect(context)
    if file is not None:
        spec = PriceVersionSpec.model_validate_json(_read(file))
    else:
        named = {line.sku: line for line in parse_prices(prices or [])}
        present = None if tenant is not None or currency is not None else _find_newest(client)
        lines = {line.sku: line for line in present.lines} if present else {}
        least = present.minimum_seconds if present else 60
        spec = PriceVersionSpec(
            currency=currency or (present.currency if present else "CNY"),
            valid_from=None if start is None else _instant(start),
            minimum_seconds=least if minimum is None else parse_seconds(minimum, "--minimum"),
            lines=tuple((lines | named).values()),
            tenant_id=None if tenant is None else client.tenants.id_of(tenant),
            note=note,
        )
    made = client.price_books.publish(spec)
    sentence = f"{len(made.lines)} prices in force from {show_time(made.valid_from)}"
    show_done(output, made, made.price_version_id, sentence)


def _find_newest(client: Client) -> PriceVersionView | None:
    """The newest public prices, in force or about to be."""
    public = (each for each in client.price_books.list() if each.tenant_id is None)
    return max(public, key=lambda each: each.valid_from, default=None)


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
        try:
            lines.append(PriceLine.model_validate({"sku": sku, "per_hour": amount}))
        except ValidationError as error:
            raise typer.BadParameter(f"expected a price such as cpu=0.10, found '{what}={amount}'"[:160]) from error
    return tuple(lines)


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
