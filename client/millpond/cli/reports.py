"""Where the money went: `report cost`, `report charges`."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from millpond.cli.amounts import parse_seconds
from millpond.cli.bills import PeriodOption, TenantOption, exact, find_payer, period_start, show_money
from millpond.cli.rendering import field_grid, heading, make_table, show_json, words
from millpond.cli.session import MONEY, Output, OutputOption, connect, out
from millpond.client.client import Client
from millpond_contracts.bodies.bills import ChargeGroup, CostGroup, CostKey, CostReport, FleetCost
from millpond_contracts.ids import PoolId
from millpond_contracts.quantities import ExactDecimal

report = typer.Typer(name="report", help="See where the money went.", no_args_is_help=True)

LastOption = Annotated[
    str | None, typer.Option("--last", metavar="TIME", help="The last 15m, 2h, 7d, instead of a day or a month.")
]
_SHOWN = 40


@report.command()
def cost(
    context: typer.Context,
    by: Annotated[CostKey, typer.Option("--by", help="What to tell apart.")] = CostKey.JOB,
    tenant: TenantOption = None,
    last: LastOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what jobs, projects, tenants or pools cost, and where the fleet's time went.

    An operator sees all tenants and the fleet: against a fixed one, and with what nobody used. Amounts are exact, at
    the public list price; `charged` is what the bills say.
    """
    client = connect(context)
    start = None if last is None else datetime.now(UTC) - timedelta(seconds=parse_seconds(last, "--last"))
    tenant_id = None if tenant is None else client.tenants.id_of(tenant)
    found = client.reports.cost(by, start_at=start, tenant_id=tenant_id)
    if output is Output.JSON:
        show_json(found.model_dump(mode="json"))
    elif output is Output.ID:
        for each in found.items:
            typer.echo(_id_of(each))
    else:
        _show_cost(client, found)


def _show_cost(client: Client, found: CostReport) -> None:
    console = out()
    console.print(f"{found.start_at:%Y-%m-%d %H:%M:%SZ} to {found.end_at:%Y-%m-%d %H:%M:%SZ}, in {found.currency}")
    if found.fleet is not None:
        _show_fleet(found.fleet, {pool.pool_id: pool.name for pool in client.pools.list()})
    heading(console, f"by {found.group_by.value}")
    rows = [
        [each.job_name or _id_of(each), exact(each.used), exact(each.held_unbilled), exact(each.charged), _id_of(each)]
        for each in found.items
    ]
    rows.append(["all", exact(found.used), exact(found.held_unbilled), exact(found.charged), ""])
    heads = [
        (found.group_by.value, False),
        ("used", True),
        ("held, not billed", True),
        ("charged", True),
        ("id", False),
    ]
    console.print(make_table(heads, rows[-_SHOWN:]))
    if len(rows) > _SHOWN:
        console.print(f"the last {_SHOWN - 1} of {len(rows) - 1}; -o json has all", style="dim")


def _show_fleet(fleet: FleetCost, pools: dict[PoolId, str]) -> None:
    console = out()
    fields = [
        ("a fixed fleet", f"{exact(fleet.fixed)} for the {fleet.nodes} machines that were there, all the time"),
        ("what was there", f"{exact(fleet.provided)}, which is {exact(fleet.saved)} less"),
        ("used", f"{exact(fleet.used)}, {_percent(fleet.utilisation)}"),
        ("held, not billed", exact(fleet.held_unbilled)),
        ("idle", exact(fleet.idle)),
        ("out of work", exact(fleet.unavailable)),
        ("commitment unused", exact(fleet.unused_commitment)),
    ]
    console.print(field_grid(fields))
    rows = [
        [
            pools.get(each.pool_id, str(each.pool_id)),
            words(each.market),
            exact(each.provided),
            exact(each.used),
            exact(each.idle),
            exact(each.unavailable),
            _percent(each.utilisation),
        ]
        for each in fleet.shares
    ]
    heads = [("pool", False), ("paid for", False), ("there", True), ("used", True), ("idle", True)]
    console.print(make_table([*heads, ("out of work", True), ("used of it", True)], rows))
    for item in fleet.left_out:
        console.print(f"left out, more was held than there was: {item}", style="yellow")


def _id_of(each: CostGroup) -> str:
    return str(each.job_id or each.project_id or each.tenant_id or each.pool_id or "-")


def _percent(ratio: ExactDecimal | None) -> str:
    return "-" if ratio is None else f"{ratio * 100:.1f} %"


@report.command()
def charges(
    context: typer.Context,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="WHAT",
            help="tenant, project, job, pool, node, resource, flavor, label:KEY, hour, day or month; several at once.",
        ),
    ] = None,
    tenant: TenantOption = None,
    period: PeriodOption = None,
    last: LastOption = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY[=VALUE]", help="Only jobs with this label.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Sum charges exactly, by whatever is asked for; hours, days and months are the tenant's.

    An operator who names no tenant sums all of them, over --last.
    """
    client = connect(context)
    wanted = by or ["job"]
    labels = label or []
    if last is not None:
        start = datetime.now(UTC) - timedelta(seconds=parse_seconds(last, "--last"))
        tenant_id = None if tenant is None else client.tenants.id_of(tenant)
        found = list(client.charges.sums(wanted, tenant_id=tenant_id, start_at=start, labels=labels))
    else:
        payer = find_payer(client, tenant)
        begins = None if period is None else period_start(payer, period)
        found = list(client.charges.sums(wanted, tenant_id=payer.tenant_id, period_start=begins, labels=labels))
    if output is Output.TABLE:
        rows = [[*(_part(each, one) for one in wanted), str(each.seconds), show_money(each.amount)] for each in found]
        heads = [*((one, False) for one in wanted), ("seconds", True), ("amount", True)]
        out().print(make_table(heads, rows))
    else:
        show_json([each.model_dump(mode="json") for each in found])


def _part(each: ChargeGroup, dimension: str) -> str:
    if dimension.startswith("label:"):
        value = each.labels.get(dimension.removeprefix("label:"))
        return "-" if value is None else value
    if dimension in ("hour", "day", "month"):
        return "-" if each.start_at is None else f"{each.start_at:%Y-%m-%d %H:%MZ}"
    if dimension == "job":
        return f"{each.job_name or '-'} ({each.job_id})"
    ids = {"tenant": each.tenant_id, "project": each.project_id, "pool": each.pool_id, "node": each.node_id}
    names = {"resource": each.resource, "flavor": each.flavor}
    return str(ids.get(dimension) or names.get(dimension) or "-")


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(report, rich_help_panel=MONEY)
