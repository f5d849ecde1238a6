"""`plan`: where a job would start now and what it would cost; and the question that `submit` asks with it."""

import sys
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from millpond.cli.amounts import show_share, show_time
from millpond.cli.bills import show_money
from millpond.cli.job_options import JobOptions, read_jobs, takes_job_options
from millpond.cli.jobs import reason_parts
from millpond.cli.rendering import make_table, show_json, show_place, words
from millpond.cli.session import JOBS, Output, OutputOption, connect, err, out
from millpond.client.client import Client
from millpond_contracts.bodies.jobs import JobSpec
from millpond_contracts.bodies.plans import Offer, OfferPart, OfferPrice, PlanView
from millpond_contracts.quantities import plain_decimal


@takes_job_options
def plan(context: typer.Context, options: JobOptions, output: OutputOption = Output.TABLE) -> None:
    """Show where a job would start now, how near that is to its needs, and what it would cost.

    It takes what `submit` takes, or the name of a JSON file, and changes nothing:
    millpond plan --gpus 1 --time-limit 2h -- python3 train.py
    """
    client = connect(context)
    found = read_jobs(client, _file_in_place_of_command(options))
    if isinstance(found, list):
        raise typer.BadParameter("only one job at a time can be planned", param_hint="--file")
    told = client.jobs.plan(found)
    if output is Output.JSON:
        show_json(told.model_dump(mode="json"))
    elif output is Output.ID:
        for offer in told.offers:
            typer.echo(" ".join(offer.flavors) or "cpu")
    else:
        out().print(plan_text(told))


def _file_in_place_of_command(options: JobOptions) -> JobOptions:
    """`millpond plan job.json`: one word that is a JSON file means the file."""
    words_ = options.command or []
    if options.file is None and len(words_) == 1 and words_[0].endswith(".json"):
        return replace(options, file=Path(words_[0]), command=None)
    return options


def plan_text(told: PlanView) -> RenderableType:
    """A plan for a person: its offers, what the first is made of, and why the rest would wait."""
    parts: list[RenderableType] = []
    if told.offers:
        parts += [_offers_table(told.offers), *_details(told.offers[0])]
    if told.explanation is not None:
        title = "why the others would wait" if told.offers else "it would wait"
        why = f"{words(told.explanation.dominant)}: {told.explanation.message}"
        parts += [Text(f"\n{title}" if parts else title, style="bold"), Text(why)]
        if told.explanation.estimated_start is not None:
            parts.append(Text(f"expected by {show_time(told.explanation.estimated_start)}, if nobody passes it"))
        parts += reason_parts(told.explanation)
    return Group(*parts)


def _offers_table(offers: list[Offer]) -> RenderableType:
    heads = [("", True), ("devices", False), ("pool", False), ("starts now", True), ("nodes", True)]
    heads += [("distance", True), ("per hour", True), ("at its time limit", True)]
    rows = [
        [
            str(number),
            _hardware(offer),
            offer.pool,
            f"{offer.starts_now} of {offer.tasks}",
            str(offer.nodes),
            show_share(offer.distance_permille),
            "no price" if offer.quote is None else show_money(offer.quote.per_hour),
            "-" if offer.quote is None or offer.quote.total is None else show_money(offer.quote.total),
        ]
        for number, offer in enumerate(offers, start=1)
    ]
    return make_table(heads, rows)


def _details(offer: Offer) -> list[RenderableType]:
    shown: list[RenderableType] = []
    if offer.quote is not None:
        heads = [("what", False), ("amount", True), ("of one, per hour", True), ("per hour", True)]
        rows = [_price_row(line) for line in offer.quote.lines]
        shown += [Text("\nwhat the first costs", style="bold"), make_table(heads, rows)]
    waits = [f"{part.group} starts after {' and '.join(part.after)}" for part in offer.parts if part.after]
    if waits:
        shown.append(Text(f"\n{'; '.join(dict.fromkeys(waits))}: priced, and looked at as if it came by itself"))
    places = [(part.group, show_place(part.topology)) for part in offer.parts]
    if any(place for _, place in places):
        rows = [[group, place or "several places"] for group, place in places]
        shown += [Text("\nwhere it would stand", style="bold"), make_table([("group", False), ("in", False)], rows)]
    near = [row for part in offer.parts for row in _distance_rows(part)]
    if near:
        names = [("group", False), ("attribute", False)]
        figures = [(name, True) for name in ("wanted", "offered", "weight", "distance")]
        shown += [Text("\nhow near it is", style="bold"), make_table([*names, *figures], near)]
    until = f"prices as shown until {show_time(offer.expires_at)}; nothing is held for it"
    return [*shown, Text(f"\n{until}", style="dim")]


def _price_row(line: OfferPrice) -> list[str]:
    plural = "" if line.unit == "GiB" or line.quantity == 1 else "s"
    amount = f"{plain_decimal(line.quantity)} {line.unit}{plural}"
    return [line.sku, amount, show_money(line.unit_per_hour), show_money(line.per_hour)]


def _distance_rows(part: OfferPart) -> list[list[str]]:
    if part.distance is None:
        return []
    return [
        [
            part.group,
            words(each.attribute),
            f"{each.wanted:g}",
            "not told" if each.offered is None else f"{each.offered:g}",
            str(each.weight),
            show_share(each.permille),
        ]
        for each in part.distance.parts
    ]


def _hardware(offer: Offer) -> str:
    return ", ".join(offer.flavors) or "none"


def is_asking(output: Output, *, yes: bool) -> bool:
    """Whether a person sits there who can be asked: a terminal on both sides, a table wanted, and no `-y`."""
    return output is Output.TABLE and not yes and sys.stdin.isatty() and sys.stdout.isatty()


def ask_to_submit(client: Client, spec: JobSpec) -> bool:
    """Shows the best offer, or what the job would wait for, and asks."""
    told = client.jobs.plan(spec)
    err().print(Text(best_in_words(told)))
    return typer.confirm("submit it?", default=True, err=True)


def best_in_words(told: PlanView) -> str:
    """The first offer in one line; without any, what the job would wait for."""
    if not told.offers:
        reason = "" if told.explanation is None else f": {told.explanation.message}"
        return f"it would wait{reason}"
    offer = told.offers[0]
    where = f"{offer.nodes} node{'s' if offer.nodes != 1 else ''}"
    said = [f"{offer.starts_now} of {offer.tasks} tasks would start now on {where}"]
    if offer.flavors:
        said.append(f"with {_hardware(offer)}")
    if offer.quote is not None:
        said.append(f"for {show_money(offer.quote.per_hour)} an hour")
        if offer.quote.total is not None:
            said.append(f"({show_money(offer.quote.total)} at its time limit)")
    return " ".join(said)


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.command("plan", rich_help_panel=JOBS)(plan)
