"""How the command line fails: a few clear lines on stderr and an exit code, never a traceback.

0 = done, 1 = refused or failed, 2 = wrong usage, 3 = Millpond cannot be reached, 130 = interrupted.
"""

from collections.abc import Callable
from typing import Any

import typer
from pydantic import ValidationError
from rich.markup import escape
from typer.core import TyperGroup

from millpond.cli.session import err
from millpond.client.errors import Forbidden, InvalidRequest, MillpondError, Stale, Unauthenticated, Unreachable
from millpond.profiles import NoProfile, config_file
from millpond_contracts.refusals import name_faults

_NAME = "expected 1 to 63 lower-case letters, digits, '.', '_' or '-'"
REFUSED, USAGE, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130


class FriendlyGroup(TyperGroup):
    """A command group that turns what the client raises into words and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        return run_friendly(lambda: super(FriendlyGroup, self).invoke(ctx))


def run_friendly(work: Callable[[], Any]) -> Any:
    """What `work` returns; errors of the client end the program with words.

    Raises:
        typer.Exit: with the exit code, after the words were printed.
    """
    try:
        return work()
    except NoProfile as error:
        raise _stop(str(error), [], USAGE) from error
    except Unreachable as error:
        raise _stop(error.detail, [], UNREACHABLE) from error
    except MillpondError as error:
        raise _stop(error.detail, _hints(error), REFUSED) from error
    except ValidationError as error:
        raise _stop("this is not what Millpond takes:", list_places(error), USAGE) from error
    except KeyboardInterrupt as error:
        err().print("interrupted; what was started on Millpond goes on")
        raise typer.Exit(INTERRUPTED) from error


def _stop(message: str, hints: list[str], code: int) -> typer.Exit:
    console = err()
    console.print(f"[bold red]error:[/bold red] {escape(message)}", soft_wrap=True)
    for hint in hints:
        console.print(f"  {escape(hint)}", style="dim" if hint.startswith("(") else None, soft_wrap=True)
    return typer.Exit(code)


def _hints(error: MillpondError) -> list[str]:
    hints = []
    if len(error.errors) > 1:
        hints += [f"{each.pointer or 'body'}: {each.message}" for each in error.errors[:10]]
    if isinstance(error, Unauthenticated):
        hints.append(
            f"The key in use comes from MILLPOND_API_KEY or {config_file()}; renew it with `millpond login URL`."
        )
    elif isinstance(error, Forbidden):
        hints.append("`millpond whoami` tells the role of this key; an operator or the tenant's admin can do more.")
    elif isinstance(error, Stale):
        hints.append("Somebody changed it in between; look at it and repeat the command.")
    if error.status and not (isinstance(error, InvalidRequest) and error.status == 0):
        named = f", request {error.request_id}" if error.request_id else ""
        hints.append(f"({error.code}, HTTP {error.status}{named})")
    return hints


def list_places(error: ValidationError) -> list[str]:
    """One line for each fault: where, what is expected, what was found."""
    lines = []
    for each in name_faults(error.errors())[:10]:
        place = ".".join(str(part) for part in each["loc"] if part != "[key]")
        is_name = "pattern" in each["type"] and place.rpartition(".")[2] == "name"
        if each["type"] == "missing":
            lines.append(f"{place}: missing")
            continue
        expected = _NAME if is_name else each["msg"].removeprefix("Value error, ")
        is_whole = isinstance(each["input"], dict | list | tuple)  # of a contradiction inside, which the words name
        found = "" if is_whole else f", found {str(each['input'])[:60]!r}"
        lines.append(f"{place}: {expected}{found}" if place else expected + found)
    return lines
