"""Moves of running tasks so that a waiting job starts: `move`, `pool moves`."""

import time
from typing import Annotated

import typer
from rich.text import Text

from millpond.cli.amounts import parse_seconds, show_seconds
from millpond.cli.completing import complete_jobs
from millpond.cli.lending import PoolArgument, pool_spec
from millpond.cli.move_plans import moves_text
from millpond.cli.planning import is_asking
from millpond.cli.rendering import show_done, words
from millpond.cli.session import JOBS, Output, OutputOption, connect, err
from millpond_contracts.bodies.moves import (
    MoveOrderSpec,
    MoveOrderState,
    MoveOrderView,
    MovePlanView,
    MovePolicy,
)

_LOOK_SECONDS = 0.5


def move(
    context: typer.Context,
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="The job that waits: name or id.", autocompletion=complete_jobs)
    ],
    max_moves: Annotated[int, typer.Option(min=1, max=64, help="Move so many tasks at most.")] = 8,
    cool_down: Annotated[
        str, typer.Option(metavar="TIME", help="Leave alone what started a shorter time ago.")
    ] = "10m",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the moves to their end.")] = True,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """For operators: move running tasks elsewhere so that a waiting job starts; they start anew there.

    Each task's new place is kept for it before it is asked to stop. Only tasks of jobs with --retries that are no part
    of a gang are moved. `millpond explain JOB --moves` only shows the plan, with a cool-down of 10 minutes.
    """
    client = connect(context)
    rules = {"max_moves": max_moves, "cool_down_seconds": parse_seconds(cool_down, "--cool-down")}
    plan = client.jobs.plan_moves(job, **rules)
    if plan.plan is None:
        err().print(Text(f"nothing is moved: {plan.message}"))
        raise typer.Exit(1)
    if is_asking(output, yes=yes):
        err().print(moves_text(plan))
        if not typer.confirm("stop these tasks and start them anew there?", default=False, err=True):
            raise typer.Exit(1)
    order = client.jobs.order_moves(plan.job_id, MoveOrderSpec(plan=plan.plan, **rules))
    while wait and order.settled_at is None:
        time.sleep(_LOOK_SECONDS)
        order = next(
            each for each in client.jobs.list_move_orders(plan.job_id) if each.move_order_id == order.move_order_id
        )
    show_done(output, order, order.move_order_id, _sentence(plan, order))
    if order.state is MoveOrderState.REFUSED:
        raise typer.Exit(1)


def _sentence(plan: MovePlanView, order: MoveOrderView) -> str:
    if order.state is MoveOrderState.REFUSED:
        return f"nothing was moved: {order.message}"
    if order.state is not MoveOrderState.DONE:
        return f"{len(plan.moves)} tasks are ordered to move"
    told = {each.allocation_id: each for each in plan.moves}
    lines = []
    for each in order.moves:
        seen = told[each.allocation_id]
        end = {"moved": f"runs on {seen.to_node} now", "elsewhere": "runs on another node than was planned"}
        result = end.get(str(each.result), words(str(each.result)))
        lines.append(f"{seen.job} {seen.group}/{seen.index}, from {seen.from_node}: {result}")
    return "\n".join(lines)


def pool_moves(
    context: typer.Context,
    name: PoolArgument,
    off: Annotated[bool, typer.Option("--off", help="Move nothing any more unless an operator orders it.")] = False,
    wait: Annotated[str, typer.Option(metavar="TIME", help="Only for jobs that have waited so long.")] = "10m",
    per_hour: Annotated[int, typer.Option(min=1, max=1000, help="Move so many tasks an hour at most.")] = 8,
    max_moves: Annotated[int, typer.Option(min=1, max=64, help="And so many for one job.")] = 8,
    cool_down: Annotated[
        str, typer.Option(metavar="TIME", help="Leave a job alone so long after a task of it was moved.")
    ] = "1h",
    max_loss: Annotated[
        int, typer.Option(min=1, max=100, metavar="PERCENT", help="Of what the job gains, so much may be lost.")
    ] = 50,
    fragmented: Annotated[
        int, typer.Option(min=0, max=100, metavar="PERCENT", help="Only when so much of what is free is of no use.")
    ] = 30,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let the scheduler move running tasks of a pool by itself, where what is free is too scattered for a job.

    Only tasks of jobs with --retries that are no part of a gang and have run for 10 minutes. `millpond pools -o json`
    tells what is allowed now.
    """
    client = connect(context)
    pool = client.pools.get(name)
    rules = None
    if not off:
        rules = MovePolicy(
            wait_seconds=parse_seconds(wait, "--wait"),
            threshold_permille=10 * fragmented,
            max_loss_percent=max_loss,
            moves_per_hour=per_hour,
            max_moves=max_moves,
            cool_down_seconds=parse_seconds(cool_down, "--cool-down"),
        )
    changed = client.pools.replace(pool, pool_spec(pool).model_copy(update={"moves": rules}))
    if rules is None:
        sentence = f"{pool.name}: tasks move only where an operator orders it"
    else:
        sentence = (
            f"{pool.name}: at most {rules.moves_per_hour} tasks an hour move,"
            f" for jobs that have waited {show_seconds(rules.wait_seconds)}"
        )
    show_done(output, changed, changed.pool_id, sentence)


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.command("move", rich_help_panel=JOBS)(move)


def register_pool(pool: typer.Typer) -> None:
    """Adds these commands to `millpond pool`."""
    pool.command("moves")(pool_moves)
