"""Names for the shell to complete: asked for once, with little patience, and silence is no error."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import typer

from millpond.cli.session import IMPATIENCE, session_of
from millpond.client.client import Client
from millpond.client.errors import MillpondError
from millpond.client.events import SERVICES
from millpond.profiles import NoProfile

_OFFERED = 100
_PATIENCE_SECONDS = 1.5

Completer = Callable[[typer.Context, str], list[str]]


def complete_services(_: typer.Context, incomplete: str) -> list[str]:
    """Names of services."""
    return [name for name in SERVICES if name.startswith(incomplete)]


def _completer(find: Callable[[Client], Iterable[str]]) -> Completer:
    def complete(context: typer.Context, incomplete: str) -> list[str]:
        return list(dict.fromkeys(islice(_matching(context, incomplete, find), _OFFERED)))

    return complete


def _matching(context: typer.Context, incomplete: str, find: Callable[[Client], Iterable[str]]) -> Iterator[str]:
    session = session_of(context)
    # Nothing is run while a shell completes, so the options of the program itself have not been taken yet.
    session.profile = session.profile or context.find_root().params.get("profile")
    try:
        with session.open(IMPATIENCE, timeout_seconds=_PATIENCE_SECONDS) as client:
            yield from (name for name in find(client) if name.startswith(incomplete))
    except (MillpondError, NoProfile):
        return


complete_jobs = _completer(lambda client: (job.name for job in islice(client.jobs.list(newest_first=True), 200)))
complete_nodes = _completer(lambda client: (node.name for node in client.nodes.list()))
complete_pools = _completer(lambda client: (pool.name for pool in client.pools.list()))
complete_tenants = _completer(lambda client: (tenant.name for tenant in client.tenants.list()))
complete_projects = _completer(lambda client: (project.name for project in client.projects.list()))
complete_virtual_pools = _completer(lambda client: (each.name for each in client.virtual_pools.list()))
complete_keys = _completer(lambda client: (key.name for key in client.api_keys.list(revoked=False)))
