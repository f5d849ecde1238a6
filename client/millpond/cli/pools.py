"""Pools and flavors: `pools`, `pool ...`, `capacity`, `flavors`."""

from typing import Annotated

import typer
from rich.text import Text

from millpond.cli import lending, moving
from millpond.cli.amounts import parse_pairs, show_amount, show_milli, show_time
from millpond.cli.completing import complete_pools, complete_tenants
from millpond.cli.rendering import Column, field_grid, make_table, show_done, show_json, show_list
from millpond.cli.session import MACHINES, LabelFilter, Output, OutputOption, connect, out
from millpond_contracts.bodies.devices import AcceleratorView
from millpond_contracts.bodies.nodes import FlavorView
from millpond_contracts.bodies.pools import (
    CapacityFigures,
    HostCapacity,
    NodeSelector,
    PoolCapacity,
    PoolIsolation,
    PoolSpec,
    PoolView,
)

pool = typer.Typer(name="pool", help="Make pools and say which machines they take.", no_args_is_help=True)


def _selector(each: PoolView) -> str:
    given = each.selector.model_dump(exclude_none=True)
    labels = given.pop("labels", {})
    parts = [f"{key}={value}" for key, value in (*given.items(), *labels.items())]
    return ", ".join(parts) or "every machine"


POOL_COLUMNS: list[Column[PoolView]] = [
    Column("name", lambda each: each.name),
    Column("takes", _selector),
    Column("priority", lambda each: str(each.priority), is_right=True),
    Column("class", lambda each: each.performance_class),
    Column("place", lambda each: "/".join(part for part in (each.region, each.zone) if part) or "-"),
    Column("isolation", lambda each: each.isolation.value),
    Column("id", lambda each: str(each.pool_id), is_extra=True),
]


def pools(context: typer.Context, label: LabelFilter = None, output: OutputOption = Output.TABLE) -> None:
    """List pools: named sets of machines."""
    found = connect(context).pools.list(label=tuple(label or ()))
    show_list(output, found, POOL_COLUMNS, lambda each: each.pool_id, empty="no pools that these credentials may use")


pool.command("list", help="List pools.")(pools)


@pool.command("create")
def create_pool(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Lower case, such as training.")],
    select: Annotated[
        list[str] | None,
        typer.Option(metavar="WHAT=VALUE", help="Take machines with arch, region, zone, vendor, model_key or a label."),
    ] = None,
    priority: Annotated[int, typer.Option(help="Pools are tried for a joining machine from high to low.")] = 0,
    performance_class: Annotated[str, typer.Option(help="A word for how fast it is.")] = "standard",
    region: Annotated[str | None, typer.Option(help="Where it is.")] = None,
    zone: Annotated[str | None, typer.Option(help="Where in the region it is.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Dedicate it to this tenant (name or id).", autocompletion=complete_tenants)
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a pool."""
    client = connect(context)
    spec = PoolSpec(
        name=name,
        priority=priority,
        selector=parse_selector(select or []),
        performance_class=performance_class,
        region=region,
        zone=zone,
        isolation=PoolIsolation.SHARED if tenant is None else PoolIsolation.DEDICATED,
        tenant_id=None if tenant is None else client.tenants.id_of(tenant),
    )
    made = client.pools.create(spec)
    show_done(output, made, made.pool_id, f"made pool {made.name}; it takes {_selector(made)}")


@pool.command("delete")
def delete_pool(
    context: typer.Context, name: Annotated[str, typer.Argument(metavar="POOL", autocompletion=complete_pools)]
) -> None:
    """Delete an empty pool."""
    client = connect(context)
    found = client.pools.get(name)
    client.pools.delete(found)
    out().print(f"deleted pool {found.name}")


def parse_selector(texts: list[str]) -> NodeSelector:
    """`arch=aarch64` and the like; what is no part of a machine's description is a label."""
    pairs = parse_pairs(texts, "--select")
    known = {key: pairs.pop(key) for key in ("arch", "region", "zone", "vendor", "model_key") if key in pairs}
    return NodeSelector(labels=pairs, **known)


def capacity(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[POOL]", help="Name or id. Default: all pools.", autocompletion=complete_pools),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what pools have, hold, and can still take."""
    client = connect(context)
    chosen = list(client.pools.list()) if name is None else [client.pools.get(name)]
    figures = [(each, client.pools.capacity(each.pool_id)) for each in chosen]
    if output is Output.JSON:
        show_json([each.model_dump(mode="json") for _, each in figures])
    elif output is Output.ID:
        for each, _ in figures:
            typer.echo(str(each.pool_id))
    else:
        for each, found in figures:
            show_capacity(each, found)


def show_capacity(each: PoolView, found: PoolCapacity) -> None:
    """Prints a pool's figures: every line sums to its total."""
    console = out()
    by_state = [f"{count} {state}" for state, count in found.nodes.items() if count and state != "schedulable"]
    machines = ", ".join(by_state) + f"; {found.nodes.get('schedulable', 0)} take new work" if by_state else "none"
    console.print(Text(each.name, style="bold"))
    console.print(field_grid([("machines", machines), ("as of", show_time(found.as_of))]))
    heads = ["", "total", "available", "held", "reserved", "fragmented", "out of work", "could start now"]
    rows = [_host_row(line) for line in found.hosts] + [_device_row(line) for line in found.devices]
    console.print(make_table([(head, head not in ("", "could start now")) for head in heads], rows))
    console.print()


def _host_row(line: HostCapacity) -> list[str]:
    amounts = (line.total, line.available, line.allocated, line.reserved)
    shown = [show_amount(line.resource, amount) for amount in amounts]
    return [line.resource, *shown, "-", show_amount(line.resource, line.unschedulable), ""]


def _device_row(line: CapacityFigures) -> list[str]:
    amounts = (line.total, line.available, line.allocated, line.reserved, line.fragmented, line.unschedulable)
    free = line.reserved + line.fragmented + line.available
    started = [f"{count} of {_show_size(size, line, free)}" for size, count in line.fits.items() if count]
    fits = ", ".join([*started, *(f"{count} of {name}" for name, count in line.partitions.items())])
    return [line.flavor, *(show_milli(amount) for amount in amounts), fits or "nothing"]


def _show_size(size: str, line: CapacityFigures, free: int) -> str:
    """A size of tasks, and how much of what is free they cannot use where that is some of it."""
    devices, separator, milli = size.rpartition("x")
    shown = f"{devices} devices" if separator else f"{show_milli(int(milli))} device"
    lost = 100 * line.fragmented_by_size.get(size, 0)
    return f"{shown} (no use of {-(-lost // free)} %)" if lost else shown


FLAVOR_COLUMNS: list[Column[FlavorView]] = [
    Column("name", lambda each: each.name),
    Column("kind", lambda each: each.kind.value),
    Column(
        "made of", lambda each: ", ".join(f"{k}={v}" for k, v in each.selector.model_dump(exclude_none=True).items())
    ),
    Column("from", lambda each: "catalogue" if each.builtin else "operator"),
]
ACCELERATOR_COLUMNS: list[Column[AcceleratorView]] = [
    Column("vendor", lambda each: each.vendor),
    Column("model", lambda each: each.model),
    Column("memory GiB", lambda each: _figure(each.memory_gib), is_right=True),
    Column("bf16 TFLOPS", lambda each: _figure(each.bf16_tflops), is_right=True),
    Column("int8 TOPS", lambda each: _figure(each.int8_tops), is_right=True),
    Column("year", lambda each: _figure(each.release_year), is_right=True),
    Column("confidence", lambda each: each.confidence),
]


def _figure(value: float | None) -> str:
    return "?" if value is None else f"{value:g}"


def flavors(
    context: typer.Context,
    catalogue: Annotated[bool, typer.Option("--catalogue", help="The whole accelerator catalogue instead.")] = False,
    vendor: Annotated[str | None, typer.Option(help="Only this vendor's part of the catalogue.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List flavors: the classes of devices in limits and prices."""
    client = connect(context)
    if catalogue or vendor is not None:
        entries = client.flavors.catalogue(vendor=vendor)
        show_list(
            output, entries, ACCELERATOR_COLUMNS, lambda each: each.model, empty="no such vendor in the catalogue"
        )
    else:
        show_list(output, client.flavors.list(), FLAVOR_COLUMNS, lambda each: each.name, empty="no flavors")


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    lending.register(pool)
    moving.register_pool(pool)
    app.command("pools", rich_help_panel=MACHINES)(pools)
    app.add_typer(pool, rich_help_panel=MACHINES)
    app.command("capacity", rich_help_panel=MACHINES)(capacity)
    app.command("flavors", rich_help_panel=MACHINES)(flavors)
