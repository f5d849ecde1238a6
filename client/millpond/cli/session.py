"""What every command shares: how to reach Millpond, where to print, and in which form."""

import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import httpx
import typer
from rich.console import Console

from millpond.client.client import Client
from millpond.client.retries import RetryPolicy

# Piped tables are for programs and files: never wrapped at 80 characters.
_PIPED_WIDTH = 240
# A person waits at a prompt: give up on a silent address within about two seconds.
PATIENCE = RetryPolicy(attempts=4)
IMPATIENCE = RetryPolicy(attempts=1)

JOBS, MACHINES, TENANTS, MONEY, STACK = (
    "Your jobs",
    "Machines and pools",
    "Tenants and limits",
    "Money",
    "This stack",
)


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"
    ID = "id"


SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="From then on: 2h (ago), 2026-11-30, 2026-11-30T12:00Z.")
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Before then.")]
LabelFilter = Annotated[
    list[str] | None,
    typer.Option("--label", "-l", metavar="KEY[=VALUE]", help="Only with this label; of several, all must hold."),
]

OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="table for people, json for programs, id for the next command.")
]


@dataclass(slots=True)
class Session:
    """One run of the command line. `transport` replaces the network in tests."""

    profile: str | None = None
    transport: httpx.BaseTransport | None = None

    def open(self, retries: RetryPolicy = PATIENCE, *, timeout_seconds: float = 30.0) -> Client:
        """A client for the chosen profile.

        Raises:
            NoProfile: nothing says where Millpond is.
        """
        return Client(profile=self.profile, retries=retries, transport=self.transport, timeout_seconds=timeout_seconds)


def session_of(context: typer.Context) -> Session:
    """The session of this run."""
    return context.ensure_object(Session)


def connect(context: typer.Context, retries: RetryPolicy = PATIENCE) -> Client:
    """A client, closed when the command ends."""
    client = session_of(context).open(retries)
    context.call_on_close(client.close)
    return client


def out() -> Console:
    """Where answers go. Made anew each time, since a test may have replaced the streams."""
    return _console(stderr=False)


def err() -> Console:
    """Where progress, hints and errors go."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if is_terminal or "COLUMNS" in os.environ else _PIPED_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)
