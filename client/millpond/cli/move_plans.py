"""How a plan of moves reads: which tasks would go where so that a job starts."""

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from millpond.cli.amounts import show_count, show_share
from millpond.cli.rendering import field_grid, make_table, show_json, words
from millpond.cli.session import Output, out
from millpond.client.client import Client
from millpond_contracts.bodies.moves import MovePlanView


def explain_moves(client: Client, job: str, output: Output) -> None:
    """Shows which tasks would have to move."""
    plan = client.jobs.plan_moves(job)
    if output is Output.JSON:
        show_json(plan.model_dump(mode="json"))
    elif output is Output.ID:
        for each in plan.moves:
            typer.echo(str(each.allocation_id))
    else:
        out().print(moves_text(plan))


def moves_text(plan: MovePlanView) -> RenderableType:
    """A plan of moves for a person."""
    fields: list[tuple[str, RenderableType]] = [
        ("outcome", f"{words(plan.outcome)}: {plan.message}"),
        ("fragmented", f"{show_share(plan.fragmentation_permille)} of what is free cannot be used by it"),
    ]
    if plan.largest_free_block is not None:
        fields.append(("largest free block", f"{show_count(plan.largest_free_block, 'whole device')} on one node"))
    if plan.nodes:
        fields.append(("would start on", ", ".join(plan.nodes)))
    if not plan.moves:
        return field_grid(fields)
    heads = [("job", False), ("task", False), ("from", False), ("to", False), ("work lost", True)]
    rows = [
        [each.job, f"{each.group}/{each.index}", each.from_node, each.to_node, f"{each.lost_seconds} s"]
        for each in plan.moves
    ]
    return Group(field_grid(fields), Text("\nmoves", style="bold"), make_table(heads, rows))
