"""Where the command line talks to: `login`, `profile ...`."""

import sys
from typing import Annotated

import typer

from millpond.cli.amounts import show_time
from millpond.cli.rendering import make_table, show_json, show_one
from millpond.cli.session import PATIENCE, STACK, Output, OutputOption, connect, out, session_of
from millpond.client.client import Client
from millpond.profiles import Profile, config_file, list_profiles, save_profile, use_profile

profile = typer.Typer(name="profile", help="List and choose the Millponds known here.", no_args_is_help=True)


def login(
    context: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="Such as http://127.0.0.1:7070.")],
    name: Annotated[str | None, typer.Option(help="What to call it. Default: the tenant's name, or operator.")] = None,
    virtual_pool: Annotated[str | None, typer.Option(help="Where jobs go unless told otherwise (name or id).")] = None,
) -> None:
    """Remember a Millpond and a key for it.

    The key is asked for, or read from a pipe; it is kept in a file that only you can read.
    """
    key = typer.prompt("API key", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    with Client(url, key.strip(), retries=PATIENCE, transport=session_of(context).transport) as client:
        me = client.me()
        if virtual_pool is not None:
            client.find_virtual_pool(virtual_pool)
    chosen = name or me.tenant_name or me.role.value
    file = save_profile(chosen, Profile(url=url.rstrip("/"), api_key=key.strip(), virtual_pool=virtual_pool))
    whose = f"{me.role} of {me.tenant_name}" if me.tenant_id else me.role.value
    out().print(f"logged in to {url} as {whose}; profile [bold]{chosen}[/bold] in {file}")


def whoami(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
    """Say where this talks to, and as whom."""
    client = connect(context)
    me = client.me()
    fields = [
        ("address", client.url),
        ("role", me.role.value),
        ("tenant", f"{me.tenant_name} ({me.tenant_id})" if me.tenant_id else "none: above tenants"),
        ("key", f"{me.api_key_name or 'without a name'} ({me.api_key_id})" if me.api_key_id else "a token"),
    ]
    if me.project_id:
        fields.append(("project", f"{me.project_name} ({me.project_id})"))
    if me.tenant_id:
        fields.append(("billed in", f"{me.currency}, by months of {me.timezone}"))
    if me.expires_at:
        fields.append(("valid until", show_time(me.expires_at)))
    show_one(output, me, me.api_key_id or me.role, fields)


@profile.command("list")
def show_profiles(output: OutputOption = Output.TABLE) -> None:
    """List profiles; `*` marks the one in use. Keys are not shown."""
    current, found = list_profiles()
    if output is Output.JSON:
        shown = {name: {"url": each.url, "virtual_pool": each.virtual_pool} for name, each in found.items()}
        show_json({"current": current, "profiles": shown})
    elif output is Output.ID:
        for name in found:
            typer.echo(name)
    elif not found:
        out().print("no profiles; `millpond up` and `millpond login URL` make them", style="dim")
    else:
        rows = [
            ["*" if name == current else "", name, each.url, each.virtual_pool or "-"] for name, each in found.items()
        ]
        out().print(make_table([("", False), ("name", False), ("address", False), ("virtual pool", False)], rows))
        out().print(f"in {config_file()}", style="dim")


@profile.command("use")
def choose_profile(name: Annotated[str, typer.Argument(help="From `millpond profile list`.")]) -> None:
    """Use this profile from now on."""
    use_profile(name)
    out().print(f"using {name} from now on")


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.command("login", rich_help_panel=STACK)(login)
    app.command("whoami", rich_help_panel=STACK)(whoami)
    app.add_typer(profile, rich_help_panel=STACK)
