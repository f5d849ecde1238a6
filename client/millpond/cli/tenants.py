"""Tenants and projects: `tenant ...`, `project ...`."""

from typing import Annotated

import typer

from millpond.cli.amounts import parse_pairs, show_time
from millpond.cli.completing import complete_projects, complete_tenants
from millpond.cli.rendering import Column, show_done, show_list, show_one, state
from millpond.cli.session import TENANTS, LabelFilter, Output, OutputOption, connect, out
from millpond_contracts.bodies.tenants import ProjectSpec, ProjectView, TenantSpec, TenantState, TenantView

tenant = typer.Typer(name="tenant", help="Make and look at tenants: who pays.", no_args_is_help=True)
project = typer.Typer(name="project", help="Make and look at projects of a tenant.", no_args_is_help=True)

TenantArgument = Annotated[
    str, typer.Argument(metavar="TENANT", help="Its name or its id.", autocompletion=complete_tenants)
]
TenantOption = Annotated[
    str | None,
    typer.Option(
        "--tenant", help="Whose (name or id); a tenant's own key needs none.", autocompletion=complete_tenants
    ),
]
LabelsOption = Annotated[list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="For finding it again.")]

_TENANT_COLUMNS: list[Column[TenantView]] = [
    Column("name", lambda each: each.name),
    Column("state", lambda each: state(each.state)),
    Column("zone", lambda each: each.timezone),
    Column("currency", lambda each: each.currency),
    Column("since", lambda each: show_time(each.created_at)),
    Column("id", lambda each: str(each.tenant_id), is_extra=True),
]
_PROJECT_COLUMNS: list[Column[ProjectView]] = [
    Column("name", lambda each: each.name),
    Column("tenant", lambda each: str(each.tenant_id)),
    Column("since", lambda each: show_time(each.created_at)),
    Column("id", lambda each: str(each.project_id), is_extra=True),
]


@tenant.command("create")
def create_tenant(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Lower case, such as acme.")],
    timezone: Annotated[str, typer.Option(help="IANA zone that its months follow, such as Asia/Shanghai.")] = "UTC",
    currency: Annotated[str, typer.Option(help="What it is billed in.")] = "CNY",
    label: LabelsOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a tenant."""
    spec = TenantSpec(name=name, timezone=timezone, currency=currency, labels=parse_pairs(label or [], "--label"))
    made = connect(context).tenants.create(spec)
    sentence = (
        f"made tenant [bold]{made.name}[/bold]; give it a share of a pool with\n"
        f"  millpond limit create main --tenant {made.name} --pool POOL --cpu 2 --memory 4GiB"
    )
    show_done(output, made, made.tenant_id, sentence)


@tenant.command("list")
def list_tenants(
    context: typer.Context,
    state_: Annotated[
        list[TenantState] | None, typer.Option("--state", help="Only tenants in this state; may be repeated.")
    ] = None,
    label: LabelFilter = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List tenants; deleted ones only when asked for."""
    found = connect(context).tenants.list(state=tuple(state_ or ()), label=tuple(label or ()))
    empty = "no tenants yet; `millpond tenant create NAME` makes one"
    show_list(output, found, _TENANT_COLUMNS, lambda each: each.tenant_id, empty=empty)


@tenant.command("show")
def show_tenant(context: typer.Context, name: TenantArgument, output: OutputOption = Output.TABLE) -> None:
    """Show one tenant."""
    found = connect(context).tenants.get(name)
    fields = [(column.title, column.cell(found)) for column in _TENANT_COLUMNS]
    show_one(output, found, found.tenant_id, fields)


@tenant.command("set")
def set_tenant(
    context: typer.Context,
    name: TenantArgument,
    new_name: Annotated[str | None, typer.Option(help="Call it so from now on.")] = None,
    timezone: Annotated[str | None, typer.Option(help="In force from its next period.")] = None,
    currency: Annotated[str | None, typer.Option(help="What it is billed in.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change a tenant; what is not named stays."""
    client = connect(context)
    found = client.tenants.get(name)
    spec = TenantSpec(
        name=new_name or found.name,
        timezone=timezone or found.timezone,
        currency=currency or found.currency,
        labels=found.labels,
    )
    changed = client.tenants.replace(found, spec)
    show_done(output, changed, changed.tenant_id, f"changed tenant {changed.name}")


@tenant.command("delete")
def delete_tenant(context: typer.Context, name: TenantArgument) -> None:
    """Delete a tenant that has no virtual pool."""
    client = connect(context)
    found = client.tenants.get(name)
    client.tenants.delete(found)
    out().print(f"deleted tenant {found.name}")


@project.command("create")
def create_project(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Lower case, such as research.")],
    tenant_: TenantOption = None,
    label: LabelsOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a project."""
    client = connect(context)
    tenant_id = None if tenant_ is None else client.tenants.id_of(tenant_)
    spec = ProjectSpec(name=name, tenant_id=tenant_id, labels=parse_pairs(label or [], "--label"))
    made = client.projects.create(spec)
    show_done(output, made, made.project_id, f"made project {made.name}")


@project.command("list")
def list_projects(
    context: typer.Context,
    tenant_: TenantOption = None,
    label: LabelFilter = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List projects."""
    client = connect(context)
    tenant_id = None if tenant_ is None else client.tenants.id_of(tenant_)
    found = client.projects.list(tenant_id=tenant_id, label=tuple(label or ()))
    show_list(output, found, _PROJECT_COLUMNS, lambda each: each.project_id, empty="no projects")


@project.command("delete")
def delete_project(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="PROJECT", help="Its name or its id.", autocompletion=complete_projects)
    ],
    tenant_: TenantOption = None,
) -> None:
    """Delete a project."""
    client = connect(context)
    tenant_id = None if tenant_ is None else client.tenants.id_of(tenant_)
    found = client.projects.get(name, tenant_id=tenant_id)
    client.projects.delete(found)
    out().print(f"deleted project {found.name}")


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(tenant, rich_help_panel=TENANTS)
    app.add_typer(project, rich_help_panel=TENANTS)
