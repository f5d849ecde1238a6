"""Lists and objects on the screen: a table for people, JSON for programs, or ids alone."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import typer
from pydantic import BaseModel
from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from millpond.cli.session import Output, out
from millpond_contracts.resources import Topology

Item = TypeVar("Item", bound=BaseModel)

_STYLES = {
    "green": {"ok", "ready", "running", "succeeded", "active", "healthy", "closed", "schedulable"},
    "yellow": {
        "blocked",
        "pending",
        "bound",
        "starting",
        "stopping",
        "joined",
        "checking",
        "degraded",
        "queued",
        "draft",
        "unknown",
    },
    "red": {"failed", "down", "lost", "unreachable", "unhealthy", "suspended", "preempted", "revoked", "expired"},
    "dim": {"cancelled", "released", "removed", "deleted"},
}
_UNBOUNDED = 10_000
_OVER = {"succeeded", "failed", "cancelled", "removed", "released"}
_STYLE_BY_WORD = {word: style for style, words in _STYLES.items() for word in words}


@dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    """One column of a table: a title, and the cell made from an item. Extra ones are left out where they do not fit."""

    title: str
    cell: Callable[[Item], str | Text]
    is_right: bool = False
    is_extra: bool = False


def state(word: str) -> Text:
    """A state in its colour; the word itself says it too."""
    return Text(word, style=_STYLE_BY_WORD.get(word, ""))


def plain(text: str | Text) -> Text:
    """The text as it is: what a tenant wrote is never read as markup."""
    return text if isinstance(text, Text) else Text(text)


def words(code: str | None) -> str:
    """A code such as `not_enough_devices` in words."""
    return "-" if not code else code.replace("_", " ")


def show_place(topology: Topology) -> str:
    """`zone north-a, rack r7`; empty where nothing is known."""
    known = ((words(level), value) for level, value in topology if value is not None)
    return ", ".join(f"{level} {value}" for level, value in known)


def show_labels(labels: Mapping[str, str]) -> str:
    """Labels as people write them: `team=a, stage=test`."""
    return ", ".join(f"{key}={value}" for key, value in labels.items()) or "-"


def make_table(
    columns: Sequence[tuple[str, bool]], rows: Iterable[Iterable[str | Text]], title: str | None = None
) -> Table:
    """A plain table; `columns` are titles and whether they are set to the right."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, show_edge=False)
    for name, is_right in columns:
        table.add_column(name, justify="right" if is_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(plain(cell) for cell in row))
    return table


def list_table(items: Iterable[Item], columns: Sequence[Column[Item]], title: str | None = None) -> Table:
    """A table of items."""
    heads = [(column.title, column.is_right) for column in columns]
    return make_table(heads, ([column.cell(item) for column in columns] for item in items), title)


def fitting_table(console: Console, items: Sequence[Item], columns: Sequence[Column[Item]]) -> Table:
    """A table of items without those extra columns, from the right, that would make it too wide for the screen."""
    shown = list(columns)
    extras = [column for column in columns if column.is_extra]
    table = list_table(items, shown)
    # Measured without a bound: a table always claims to fit into the width it is given.
    unbounded = console.options.update(max_width=_UNBOUNDED)
    while extras and Measurement.get(console, unbounded, table).maximum > console.width:
        shown.remove(extras.pop())
        table = list_table(items, shown)
    return table


def show_list(
    output: Output,
    items: Iterable[Item],
    columns: Sequence[Column[Item]],
    id_of: Callable[[Item], object],
    *,
    empty: str,
) -> None:
    """Prints a list; `empty` is what to tell a person when there is nothing."""
    found = list(items)
    if output is Output.JSON:
        show_json([item.model_dump(mode="json") for item in found])
    elif output is Output.ID:
        for item in found:
            typer.echo(str(id_of(item)))
    elif found:
        console = out()
        console.print(fitting_table(console, found, columns))
    else:
        out().print(empty, style="dim")


def show_one(output: Output, item: Item, id_: object, fields: Sequence[tuple[str, RenderableType]]) -> None:
    """Prints one object as fields, one a line."""
    if output is Output.JSON:
        show_json(item.model_dump(mode="json"))
    elif output is Output.ID:
        typer.echo(str(id_))
    else:
        out().print(field_grid(fields))


def show_done(output: Output, item: Item, id_: object, sentence: str) -> None:
    """Prints what was done: a sentence for people, the object or its id for programs."""
    if output is Output.TABLE:
        out().print(sentence)
    else:
        show_one(output, item, id_, ())


def past(word: str, since: str) -> Text:
    """A state with its age: `running for 3m`, `failed 9s ago`."""
    is_over = word in _OVER
    return Text.assemble(state(word), f" {since} ago" if is_over else f" for {since}")


def field_grid(fields: Sequence[tuple[str, RenderableType]]) -> Table:
    """Names and values in two columns."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in fields:
        grid.add_row(name, plain(value) if isinstance(value, str) else value)
    return grid


def show_json(value: object) -> None:
    """Prints JSON, never wrapped or coloured."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def heading(console: Console, text: str) -> None:
    """A line above a part of an answer."""
    console.print(f"\n[bold]{text}[/bold]")
