"""How pools grow and shrink: `scaling ...`."""

import json
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from millpond.cli.amounts import show_age, show_seconds, show_time
from millpond.cli.rendering import Column, past, show_done, show_list, show_one, words
from millpond.cli.session import MACHINES, Output, OutputOption, connect, out
from millpond.client.client import Client
from millpond.client.naming import find_id
from millpond_contracts.bodies.scaling import (
    NodeOrderView,
    ScalingAction,
    ScalingDecisionView,
    ScalingPolicySpec,
    ScalingPolicyView,
)
from millpond_contracts.ids import ScalingDecisionId, ScalingPolicyId

scaling = typer.Typer(
    name="scaling", help="See and say how pools grow and shrink, and why they did.", no_args_is_help=True
)

PolicyOption = Annotated[str | None, typer.Option("--policy", help="Only this one (name or id).")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many, newest first.")]
PolicyArgument = Annotated[str, typer.Argument(metavar="POLICY", help="Name or id.")]


def _percent(ratio: float | None) -> str:
    return "?" if ratio is None else f"{ratio * 100:.0f} %"


def _did(each: ScalingDecisionView) -> str:
    if each.action is ScalingAction.NONE:
        return "nothing"
    return f"{words(each.action.value)}: {each.nodes}"


DECISION_COLUMNS: list[Column[ScalingDecisionView]] = [
    Column("when", lambda each: show_time(each.decided_at)),
    Column("policy", lambda each: each.policy),
    Column("rule", lambda each: words(each.rule.value)),
    Column("did", _did),
    Column("load", lambda each: _percent(each.load_ratio), is_right=True),
    Column("why", lambda each: each.reason),
    Column("id", lambda each: str(each.scaling_decision_id), is_extra=True),
]
ORDER_COLUMNS: list[Column[NodeOrderView]] = [
    Column("order", lambda each: str(each.number), is_right=True),
    Column("state", lambda each: past(each.state.value, show_age(each.state_since))),
    Column("flavor", lambda each: each.flavor),
    Column("from", lambda each: each.provider),
    Column("waits for", lambda each: each.waits_for or "-"),
    Column("node", lambda each: "-" if each.node_id is None else str(each.node_id), is_extra=True),
    Column("id", lambda each: str(each.node_order_id), is_extra=True),
]
POLICY_COLUMNS: list[Column[ScalingPolicyView]] = [
    Column("name", lambda each: each.name),
    Column("flavor", lambda each: each.flavor),
    Column("nodes", lambda each: f"{each.rules.min_nodes} to {each.rules.max_nodes}"),
    Column("grows from", lambda each: _percent(each.rules.emergency_ratio), is_right=True),
    Column("shrinks under", lambda each: _percent(each.rules.scale_in_ratio), is_right=True),
    Column("is", lambda each: "in force" if each.enabled else "paused"),
    Column("id", lambda each: str(each.scaling_policy_id), is_extra=True),
]


@scaling.command("decisions")
def list_decisions(
    context: typer.Context,
    policy: PolicyOption = None,
    limit: LimitOption = 20,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what was decided, by which rule, and why."""
    client = connect(context)
    found = islice(client.scaling_decisions.list(scaling_policy_id=_policy_id(client, policy)), limit)
    show_list(output, found, DECISION_COLUMNS, lambda each: each.scaling_decision_id, empty="nothing was decided yet")


@scaling.command("why")
def show_decision(
    context: typer.Context,
    decision: Annotated[str, typer.Argument(metavar="DECISION", help="Its id, from `scaling decisions -o id`.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one decision with everything it was drawn from."""
    found_id = find_id(ScalingDecisionId, decision)
    if found_id is None:
        raise typer.BadParameter("expected an id; `millpond scaling decisions -o id` shows them", param_hint="DECISION")
    found = connect(context).scaling_decisions.get(found_id)
    shown = {name: value for name, value in found.inputs.items() if name not in ("demand", "candidates", "now")}
    fields: list[tuple[str, RenderableType]] = [
        ("when", show_time(found.decided_at)),
        ("policy", found.policy),
        ("rule", words(found.rule.value)),
        ("did", _did(found)),
        ("why", found.reason),
        ("load", _percent(found.load_ratio)),
        *((words(name), str(value)) for name, value in shown.items()),
    ]
    show_one(output, found, found.scaling_decision_id, fields)


@scaling.command("nodes")
def list_orders(
    context: typer.Context,
    policy: PolicyOption = None,
    limit: LimitOption = 50,
    output: OutputOption = Output.TABLE,
) -> None:
    """List ordered nodes, from the order to their release."""
    client = connect(context)
    found = islice(client.node_orders.list(scaling_policy_id=_policy_id(client, policy)), limit)
    show_list(output, found, ORDER_COLUMNS, lambda each: each.node_order_id, empty="no node was ordered yet")


@scaling.command("policies")
def list_policies(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    """List policies: one for each flavor of a pool that grows and shrinks."""
    found = connect(context).scaling_policies.list()
    show_list(output, found, POLICY_COLUMNS, lambda each: each.scaling_policy_id, empty="no pool grows or shrinks")


@scaling.command("show")
def show_policy(context: typer.Context, policy: PolicyArgument, output: OutputOption = Output.TABLE) -> None:
    """Show one policy."""
    found = connect(context).scaling_policies.get(policy)
    rules = found.rules
    fields: list[tuple[str, RenderableType]] = [
        ("name", found.name),
        ("pool", str(found.pool_id)),
        ("flavor", found.flavor),
        ("is", "in force" if found.enabled else "paused"),
        ("one node", f"{found.template.devices} x {found.template.model}, from {found.template.provider}"),
        ("nodes", f"{rules.min_nodes} to {rules.max_nodes}, {rules.unit_nodes} to {rules.max_step_nodes} at a time"),
        ("grows at once from", _percent(rules.emergency_ratio)),
        ("grows ahead from", _percent(rules.planned_ratio)),
        ("shrinks under", f"{_percent(rules.scale_in_ratio)} for {show_seconds(rules.safety_window_seconds)}"),
        ("stays after a change", show_seconds(rules.cool_down_seconds)),
        ("a node lives at least", show_seconds(rules.min_node_life_seconds)),
        ("a node may take to come", show_seconds(rules.registration_seconds)),
        ("a drain takes at most", show_seconds(rules.drain_seconds)),
        ("id", str(found.scaling_policy_id)),
    ]
    show_one(output, found, found.scaling_policy_id, fields)


@scaling.command("set")
def set_policy(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(help="A whole policy as JSON; its name says which one.", exists=True, dir_okay=False)
    ],
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a policy, or replace the one of that name.

    In the file `pool_id` may be the pool's name.
    """
    client = connect(context)
    spec = _read_spec(client, file)
    known = list(client.scaling_policies.list(name=spec.name))
    if known:
        made = client.scaling_policies.replace(known[0], spec)
        show_done(output, made, made.scaling_policy_id, f"replaced scaling policy {made.name}")
    else:
        made = client.scaling_policies.create(spec)
        show_done(output, made, made.scaling_policy_id, f"made scaling policy {made.name}")


@scaling.command("pause")
def pause_policy(context: typer.Context, policy: PolicyArgument) -> None:
    """Decide nothing more by a policy; what it ordered is still followed through."""
    _set_enabled(connect(context), policy, is_enabled=False)


@scaling.command("resume")
def resume_policy(context: typer.Context, policy: PolicyArgument) -> None:
    """Put a paused policy in force again."""
    _set_enabled(connect(context), policy, is_enabled=True)


@scaling.command("delete")
def delete_policy(context: typer.Context, policy: PolicyArgument) -> None:
    """Delete a policy that has no nodes any more."""
    client = connect(context)
    found = client.scaling_policies.get(policy)
    client.scaling_policies.delete(found)
    out().print(f"deleted scaling policy {found.name}")


def _set_enabled(client: Client, policy: str, *, is_enabled: bool) -> None:
    found = client.scaling_policies.get(policy)
    values = found.model_dump(include=set(ScalingPolicySpec.model_fields))
    client.scaling_policies.replace(found, ScalingPolicySpec.model_validate({**values, "enabled": is_enabled}))
    out().print(f"scaling policy {found.name} is {'in force' if is_enabled else 'paused'}")


def _policy_id(client: Client, policy: str | None) -> ScalingPolicyId | None:
    return None if policy is None else client.scaling_policies.get(policy).scaling_policy_id


def _read_spec(client: Client, file: Path) -> ScalingPolicySpec:
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(body, dict) and isinstance(body.get("pool_id"), str):
            body["pool_id"] = str(client.pools.get(body["pool_id"]).pool_id)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file} cannot be read as JSON: {error}", param_hint="FILE") from error
    return ScalingPolicySpec.model_validate(body)


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(scaling, rich_help_panel=MACHINES)
