"""What pools lend one another: `pool threshold`, `pool loans`, `pool return`."""

from typing import Annotated

import typer

from millpond.cli.amounts import parse_mib, parse_milli, parse_seconds, show_amount, show_time
from millpond.cli.rendering import Column, show_done, show_list
from millpond.cli.session import Output, OutputOption, connect, out
from millpond.client.client import Client
from millpond_contracts.bodies.loans import LoanState, LoanView, Threshold
from millpond_contracts.bodies.pools import PoolSpec, PoolView
from millpond_contracts.ids import LoanId

PoolArgument = Annotated[str, typer.Argument(metavar="POOL", help="Name or id.")]


def threshold(
    context: typer.Context,
    name: PoolArgument,
    low: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="The pool is short below it: 2 devices or cores, or 64GiB.")
    ] = None,
    flavor: Annotated[str | None, typer.Option(help="Which devices are meant.")] = None,
    resource: Annotated[str, typer.Option(help="`cpu` or `memory`, where no flavor is meant.")] = "device",
    enough: Annotated[str | None, typer.Option(metavar="AMOUNT", help="Borrow until so much is available.")] = None,
    donor: Annotated[list[str] | None, typer.Option(help="A pool that lends idle nodes; may be repeated.")] = None,
    donor_keeps: Annotated[str, typer.Option(metavar="AMOUNT", help="What stays available at a donor.")] = "0",
    max_nodes: Annotated[int, typer.Option(min=1, max=1000, help="Most nodes on loan at a time.")] = 1,
    return_after: Annotated[
        str, typer.Option(metavar="TIME", help="A node is drained home then at the latest.")
    ] = "4h",
    grace: Annotated[str, typer.Option(metavar="TIME", help="What runs on so long after that is stopped.")] = "1h",
    remove: Annotated[bool, typer.Option("--remove", help="Take the threshold away; lent nodes return.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say how much of a resource a pool wants available, and which pools lend it nodes when there is less."""
    client = connect(context)
    pool = client.pools.get(name)
    key = resource if flavor is None else f"device/{flavor}"
    kept = tuple(each for each in pool.thresholds if each.key != key)
    if remove:
        changed = client.pools.replace(pool, pool_spec(pool).model_copy(update={"thresholds": kept}))
        show_done(output, changed, changed.pool_id, f"{pool.name}: no threshold on {key}")
        return
    if low is None:
        raise typer.BadParameter("say below how much the pool is short", param_hint="--low")
    rule = Threshold.model_validate(
        {
            "resource": "device" if flavor is not None else resource,
            "flavor": flavor,
            "low": _amount(resource, low, "--low"),
            "enough": None if enough is None else _amount(resource, enough, "--enough"),
            "donors": tuple(client.pools.id_of(each) for each in donor or ()),
            "donor_keeps": 0 if donor_keeps == "0" else _amount(resource, donor_keeps, "--donor-keeps"),
            "max_nodes": max_nodes,
            "return_after_seconds": parse_seconds(return_after, "--return-after"),
            "return_grace_seconds": parse_seconds(grace, "--grace"),
        }
    )
    changed = client.pools.replace(pool, pool_spec(pool).model_copy(update={"thresholds": (*kept, rule)}))
    text = f"{pool.name}: short below {show_amount(rule.resource, rule.low)} of {key}"
    show_done(output, changed, changed.pool_id, text + (f"; borrows from {', '.join(donor)}" if donor else ""))


def pool_spec(pool: PoolView) -> PoolSpec:
    """The pool as it would be described anew."""
    return PoolSpec.model_validate({name: getattr(pool, name) for name in PoolSpec.model_fields})


def _amount(resource: str, text: str, hint: str) -> int:
    return parse_mib(text, hint) if resource == "memory" else parse_milli(text, hint)


def loans(
    context: typer.Context,
    name: PoolArgument,
    state: Annotated[LoanState | None, typer.Option(help="Only loans in this state.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the nodes that a pool lent or borrowed: who lent what, why, and when it returns."""
    client = connect(context)
    pool = client.pools.get(name)
    if output is Output.TABLE:
        for shortage in client.pools.shortages(pool.pool_id).items:
            has = show_amount(shortage.threshold, shortage.available)
            wanted = show_amount(shortage.threshold, shortage.low)
            out().print(f"short of {shortage.threshold} since {show_time(shortage.since)}: {has} of {wanted}")
    found = client.pools.loans(pool.pool_id, state=state)
    show_list(output, found, _columns(client), lambda each: each.loan_id, empty="no loans from or to this pool")


def _columns(client: Client) -> list[Column[LoanView]]:
    names = {pool.pool_id: pool.name for pool in client.pools.list()}
    return [
        Column("node", lambda each: each.node_name),
        Column("from", lambda each: names.get(each.from_pool_id, str(each.from_pool_id))),
        Column("to", lambda each: names.get(each.to_pool_id, str(each.to_pool_id))),
        Column("brings", lambda each: f"{show_amount(each.threshold, each.amount)} ({each.threshold})"),
        Column("state", lambda each: each.state.value),
        Column("why", lambda each: each.reason),
        Column("returns", lambda each: show_time(each.due_at)),
        Column("id", lambda each: str(each.loan_id), is_extra=True),
    ]


def return_node(
    context: typer.Context,
    name: PoolArgument,
    loan: Annotated[str, typer.Argument(metavar="LOAN", help="Its id.")],
    deadline: Annotated[str, typer.Option(metavar="TIME", help="Stop what is left after 15m, 2h, 1d.")] = "1h",
    output: OutputOption = Output.TABLE,
) -> None:
    """Send a lent node home before it is due."""
    client = connect(context)
    try:
        loan_id = LoanId.parse(loan)
    except ValueError as error:
        raise typer.BadParameter(
            f"expected an id such as loan_01..., found {loan[:60]!r}", param_hint="LOAN"
        ) from error
    pool_id = client.pools.get(name).pool_id
    view = client.pools.return_node(pool_id, loan_id, deadline_seconds=parse_seconds(deadline, "--deadline"))
    show_done(output, view, view.loan_id, f"{view.node_name}: returns once it is empty")


def register(pool: typer.Typer) -> None:
    """Adds these commands to `millpond pool`."""
    pool.command("threshold")(threshold)
    pool.command("loans")(loans)
    pool.command("return")(return_node)
