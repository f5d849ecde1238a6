"""Devices held for a time: `reservation create`, `list`, `cancel`."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from millpond.cli.amounts import parse_milli, parse_seconds, parse_time, show_milli, show_time
from millpond.cli.limits import OwnerOption, VirtualPoolArgument, find_virtual_pool
from millpond.cli.rendering import Column, show_done, show_list
from millpond.cli.session import TENANTS, Output, OutputOption, connect, out
from millpond_contracts.bodies.reservations import ReservationSpec, ReservationView
from millpond_contracts.ids import ReservationId

reservation = typer.Typer(
    name="reservation",
    help="Hold devices for a share, always or for a time.\n\nNobody else gets them meanwhile, even while they idle.",
    no_args_is_help=True,
)

FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="When it begins, as 2031-05-01T08:00+08:00. Default: now."),
]
ForOption = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="How long it lasts: 8h, 2d. Default: without end.")
]


@reservation.command("create")
def create_reservation(
    context: typer.Context,
    name: VirtualPoolArgument,
    flavor: Annotated[str, typer.Option(help="Which flavor of device.")],
    devices: Annotated[str, typer.Option(metavar="N", help="How many: 2 or 0.5.")],
    tenant: OwnerOption = None,
    begins: FromOption = None,
    lasts: ForOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Hold devices for a share.

    For example: millpond reservation create main --flavor h100-sxm --devices 8 --from 2031-05-01T08:00Z --for 12h
    """
    client = connect(context)
    start = datetime.now(UTC) if begins is None else parse_time(begins, "--from")
    spec = ReservationSpec(
        virtual_pool_id=find_virtual_pool(client, name, tenant).virtual_pool_id,
        flavor=flavor,
        device_milli=parse_milli(devices, "--devices"),
        starts_at=start,
        ends_at=None if lasts is None else start + timedelta(seconds=parse_seconds(lasts, "--for")),
    )
    made = client.reservations.create(spec)
    until = "without end" if made.ends_at is None else f"until {show_time(made.ends_at)}"
    sentence = f"{show_milli(made.device_milli)} {made.flavor} held from {show_time(made.starts_at)} {until}"
    show_done(output, made, made.reservation_id, sentence)


@reservation.command("list")
def list_reservations(context: typer.Context, tenant: OwnerOption = None, output: OutputOption = Output.TABLE) -> None:
    """List reservations."""
    client = connect(context)
    tenant_id = None if tenant is None else client.tenants.id_of(tenant)
    found = list(client.reservations.list(tenant_id=tenant_id))
    names = {each.virtual_pool_id: each.name for each in client.virtual_pools.list(tenant_id=tenant_id)}
    columns: list[Column[ReservationView]] = [
        Column("virtual pool", lambda each: names.get(each.virtual_pool_id, str(each.virtual_pool_id))),
        Column("flavor", lambda each: each.flavor),
        Column("devices", lambda each: show_milli(each.device_milli), is_right=True),
        Column("from", lambda each: show_time(each.starts_at)),
        Column("until", lambda each: show_time(each.ends_at)),
        Column("id", lambda each: str(each.reservation_id)),
    ]
    show_list(output, found, columns, lambda each: each.reservation_id, empty="no reservations")


@reservation.command("cancel")
def cancel_reservation(
    context: typer.Context, reservation_id: Annotated[str, typer.Argument(metavar="ID", help="The reservation's id.")]
) -> None:
    """Cancel a reservation; what runs goes on."""
    client = connect(context)
    try:
        wanted = ReservationId.parse(reservation_id)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="ID") from error
    client.reservations.cancel(client.reservations.get(wanted))
    out().print(f"cancelled {wanted}")


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(reservation, rich_help_panel=TENANTS)
