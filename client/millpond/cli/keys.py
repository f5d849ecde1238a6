"""API keys: `key ...` and `whoami`."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from millpond.cli.amounts import parse_seconds, show_age, show_time
from millpond.cli.completing import complete_keys, complete_projects
from millpond.cli.rendering import Column, show_done, show_list, show_one, state
from millpond.cli.session import TENANTS, Output, OutputOption, connect, out
from millpond.cli.tenants import TenantOption
from millpond_contracts.bodies.tenants import ApiKeySpec, ApiKeyView, Role

key = typer.Typer(name="key", help="Make and revoke API keys.", no_args_is_help=True)

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="Its name or its id.", autocompletion=complete_keys)]
RoleOption = Annotated[Role, typer.Option(help="operator, or a tenant's tenant_admin, member or viewer.")]


def _standing(each: ApiKeyView) -> str:
    if each.revoked_at is not None:
        return "revoked"
    if each.expires_at is not None and each.expires_at < datetime.now(UTC):
        return "expired"
    return "active"


_COLUMNS: list[Column[ApiKeyView]] = [
    Column("name", lambda each: each.name),
    Column("role", lambda each: each.role.value),
    Column("state", lambda each: state(_standing(each))),
    Column("until", lambda each: "for good" if each.expires_at is None else show_time(each.expires_at)),
    Column("last used", lambda each: "never" if each.last_used_at is None else f"{show_age(each.last_used_at)} ago"),
    Column("tenant", lambda each: str(each.tenant_id or "-")),
    Column("id", lambda each: str(each.api_key_id), is_extra=True),
]


@key.command("create")
def create_key(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Lower case, such as ci.")],
    tenant_: TenantOption = None,
    role: RoleOption = Role.MEMBER,
    project: Annotated[
        str | None, typer.Option(help="Bind it to a project (name or id).", autocompletion=complete_projects)
    ] = None,
    expires: Annotated[str | None, typer.Option(metavar="TIME", help="Good for 2h, 30d. Default: for good.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a key and show its secret, this once."""
    client = connect(context)
    tenant_id = None if tenant_ is None else client.tenants.id_of(tenant_)
    made = client.api_keys.create(
        ApiKeySpec(
            name=name,
            role=role,
            tenant_id=tenant_id,
            project_id=None if project is None else client.projects.get(project, tenant_id=tenant_id).project_id,
            expires_in_seconds=None if expires is None else parse_seconds(expires, "--expires"),
        )
    )
    if output is not Output.TABLE:
        show_one(output, made, made.api_key_id, ())
        return
    out().print(f"made key [bold]{made.name}[/bold] ({made.role}); its secret, shown this once:\n")
    typer.echo(f"  {made.secret}\n")
    out().print(
        f"Use it: export MILLPOND_API_KEY=..., or `millpond login {client.url} --name {made.name}`", style="dim"
    )


@key.command("list")
def list_keys(context: typer.Context, tenant_: TenantOption = None, output: OutputOption = Output.TABLE) -> None:
    """List keys, never their secrets."""
    client = connect(context)
    found = client.api_keys.list(tenant_id=None if tenant_ is None else client.tenants.id_of(tenant_))
    show_list(output, found, _COLUMNS, lambda each: each.api_key_id, empty="no keys")


@key.command("set")
def set_role(
    context: typer.Context,
    name: KeyArgument,
    role: RoleOption,
    tenant_: TenantOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change a key's role, in force within seconds."""
    client = connect(context)
    tenant_id = None if tenant_ is None else client.tenants.id_of(tenant_)
    changed = client.api_keys.change_role(client.api_keys.get(name, tenant_id=tenant_id), role)
    show_done(output, changed, changed.api_key_id, f"{changed.name} is a {changed.role} now")


@key.command("revoke")
def revoke_key(
    context: typer.Context, name: KeyArgument, tenant_: TenantOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Revoke a key: refused everywhere within seconds."""
    client = connect(context)
    tenant_id = None if tenant_ is None else client.tenants.id_of(tenant_)
    revoked = client.api_keys.revoke(client.api_keys.get(name, tenant_id=tenant_id).api_key_id)
    show_done(output, revoked, revoked.api_key_id, f"revoked {revoked.name}")


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(key, rich_help_panel=TENANTS)
