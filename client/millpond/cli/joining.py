"""Machines that join: `join-token ...` and `join URL TOKEN`."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from millpond.cli.amounts import parse_pairs, parse_seconds, show_time
from millpond.cli.completing import complete_pools
from millpond.cli.rendering import Column, show_list, show_one
from millpond.cli.session import MACHINES, Output, OutputOption, connect, out
from millpond.client.errors import MillpondError
from millpond_contracts.bodies.nodes import JoinTokenSpec, JoinTokenView, Market
from millpond_contracts.ids import JoinTokenId

join_token = typer.Typer(name="join-token", help="Make tokens with which machines join.", no_args_is_help=True)


@join_token.command("create")
def create_join_token(
    context: typer.Context,
    pool: Annotated[
        str | None,
        typer.Option(help="The pool they enter (name or id). Default: pools choose.", autocompletion=complete_pools),
    ] = None,
    expires: Annotated[str, typer.Option(metavar="TIME", help="How long it is good for: 15m, 2h, 7d.")] = "1d",
    max_uses: Annotated[int | None, typer.Option(min=1, help="For how many machines.")] = None,
    market: Annotated[Market, typer.Option(help="How machines that use it are paid for.")] = Market.ON_DEMAND,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Put on machines that use it.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a join token and show it, this once."""
    client = connect(context)
    made = client.join_tokens.create(
        JoinTokenSpec(
            pool_id=None if pool is None else client.pools.id_of(pool),
            expires_in_seconds=parse_seconds(expires, "--expires"),
            max_uses=max_uses,
            market=market,
            labels=parse_pairs(label or [], "--label"),
        )
    )
    if output is not Output.TABLE:
        show_one(output, made, made.join_token_id, ())
        return
    out().print(f"good until {show_time(made.expires_at)}; on the machine that shall join, run:\n")
    typer.echo(f"  millpond join {client.url} {made.token}\n")
    out().print(
        "The token is shown this once. Other machines must reach that address (`millpond up --listen 0.0.0.0`).",
        style="dim",
    )


_COLUMNS: list[Column[JoinTokenView]] = [
    Column("id", lambda each: str(each.join_token_id)),
    Column("good until", lambda each: "revoked" if each.revoked else show_time(each.expires_at)),
    Column("used", lambda each: f"{each.uses} of {each.max_uses or 'any'}", is_right=True),
    Column("pool", lambda each: str(each.pool_id or "pools choose")),
]


@join_token.command("list")
def list_join_tokens(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    """List join tokens, never their texts."""
    found = connect(context).join_tokens.list()
    show_list(output, found, _COLUMNS, lambda each: each.join_token_id, empty="no join tokens")


@join_token.command("revoke")
def revoke_join_token(context: typer.Context, token_id: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Revoke a join token; machines that joined with it stay."""
    try:
        join_token_id = JoinTokenId.parse(token_id)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; `millpond join-token list` shows ids", param_hint="ID") from error
    connect(context).join_tokens.revoke(join_token_id)
    out().print(f"revoked {join_token_id}")


def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where Millpond is, such as http://10.0.0.5:7070.")],
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="From `millpond join-token create`.")],
    name: Annotated[str | None, typer.Option(help="What to call this machine. Default: its host name.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Pools can select by it.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where the agent keeps its identity.")] = None,
    work_dir: Annotated[Path | None, typer.Option(help="Where tasks have their work folders.")] = None,
) -> None:
    """Make this machine a node: runs its agent until Ctrl-C.

    Joining again is the same node. Tasks run on while the agent is away, and are taken up when it is back.
    """
    places = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    agent = shutil.which("millpond-node-agent", path=places)
    if agent is None:
        raise MillpondError("millpond-node-agent is not installed here; `pip install millpond` brings it")
    arguments = [agent, "run", "--url", url]
    for option, value in (("--name", name), ("--state-dir", state_dir), ("--work-dir", work_dir)):
        arguments += [] if value is None else [option, str(value)]
    for text in label or ():
        arguments += ["--label", text]
    # The token goes through the environment: every user of the machine can read arguments.
    os.execve(agent, arguments, os.environ | {"MILLPOND_JOIN_TOKEN": token})


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(join_token, rich_help_panel=MACHINES)
    app.command("join", rich_help_panel=MACHINES)(join)
