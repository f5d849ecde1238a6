"""`millpond-node-agent`: make this machine a node (`join`), be its agent (`run`), or be many (`--simulate`)."""

import argparse
import asyncio
import os
import resource
import signal
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from millpond_node_agent.agent import Agent, NotJoined
from millpond_node_agent.client import BadAddress, Refused
from millpond_node_agent.hardware.cpus import HostUnreadableError
from millpond_node_agent.identity import FolderInUse
from millpond_node_agent.observability import configure_logging, log
from millpond_node_agent.runtimes.process import UnreachableWorkFolder
from millpond_node_agent.settings import AgentSettings, ExitCode
from millpond_node_agent.simulation.descriptions import DescriptionRefused
from millpond_node_agent.simulation.fleet import Fleet

_TOKEN_VARIABLE = "MILLPOND_JOIN_TOKEN"
_SIMULATE = "--simulate"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one command and exits with a code of `ExitCode`."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0].partition("=")[0] == _SIMULATE:
        words.insert(0, "run")  # a simulation needs no word of its own
    options = build_parser().parse_args(words)
    configure_logging(options.log_level, "console" if sys.stderr.isatty() else "json")
    sys.exit(run_command(options))


def run_command(options: argparse.Namespace) -> ExitCode:
    """Carries out what the command line says; every failure is one log line and a code."""
    try:
        settings = read_settings(options)
        _raise_file_limit()
        with asyncio.Runner() as runner:
            return runner.run(_choose(options, settings))
    except (DescriptionRefused, NotJoined, BadAddress, UnreachableWorkFolder, HostUnreadableError) as error:
        log.error("cannot_start", reason=str(error))
        return ExitCode.NOT_JOINED
    except Refused as refused:
        log.error("join_refused", code=refused.code, reason=refused.detail)
        return ExitCode.REFUSED
    except FolderInUse as error:
        log.error("folder_in_use", reason=str(error))
        return ExitCode.IN_USE
    except ValidationError as error:
        first = error.errors()[0]
        log.error("cannot_join", field=".".join(map(str, first["loc"])), reason=first["msg"])
        return ExitCode.REFUSED
    except Exception as error:
        log.critical("agent_failed", exc_info=error)
        return ExitCode.FAILED


async def _join(settings: AgentSettings) -> ExitCode:
    agent = Agent(settings)
    try:
        membership = await agent.join()
    finally:
        await agent.close()
    sys.stdout.write(f"{membership.node_id} {membership.name}\n")
    return ExitCode.OK


def _choose(options: argparse.Namespace, settings: AgentSettings) -> Coroutine[None, None, ExitCode]:
    if options.command == "join":
        return _join(settings)
    if options.simulate:
        if settings.url is None:
            raise NotJoined("simulated nodes need --url, the control plane's address")
        return _run(Fleet(settings, options.simulate, settings.url))
    return _run(Agent(settings))


async def _run(agent: Agent | Fleet) -> ExitCode:
    stop = asyncio.Event()
    running = asyncio.current_task()
    assert running is not None

    def ask_to_stop() -> None:
        # A second signal ends at once; tasks run on.
        if stop.is_set():
            running.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ask_to_stop)
    try:
        return await agent.run(stop)
    except asyncio.CancelledError:
        return ExitCode.OK
    finally:
        await agent.close()


def build_parser() -> argparse.ArgumentParser:
    """The words that the command understands."""
    parser = argparse.ArgumentParser(prog="millpond-node-agent", description=__doc__)
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    commands = parser.add_subparsers(dest="command", required=True)
    join = commands.add_parser("join", help="make this machine a node; a machine that is one stays the same node")
    join.add_argument("url", help="the control plane's address, such as http://10.0.0.5:7070")
    join.add_argument("token", nargs="?", help=f"a join token; better in ${_TOKEN_VARIABLE}, which `ps` does not show")
    run = commands.add_parser("run", help="be this machine's agent until SIGTERM or SIGINT")
    run.add_argument("--url", help="the control plane's address, needed the first time")
    run.add_argument(
        _SIMULATE,
        action="append",
        default=[],
        metavar="PATH",
        help="be the simulated nodes that a file or the files of a folder describe, or `openb:N`; may be repeated",
    )
    run.add_argument("--stop-tasks", action="store_true", help="when stopped, stop all tasks first; else they run on")
    for command in (join, run):
        command.add_argument("--state-dir", type=Path, help="key, reports, logs; private to the agent")
        command.add_argument("--work-dir", type=Path, help="the tasks' own folders; reachable by other users")
        command.add_argument("--token-file", type=Path, help="a file that holds the join token")
        command.add_argument("--name", help="wanted node name; else the machine's")
        command.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="may be repeated")
    return parser


def read_settings(options: argparse.Namespace) -> AgentSettings:
    """Settings from the command line; the token also from a file, or from the environment, which then forgets it.

    Raises:
        NotJoined: a file or a label cannot be read.
    """
    state_dir = (options.state_dir or _default_state_dir()).absolute()
    # Tasks have users of their own and cannot pass through the private folder.
    work_dir = (options.work_dir or state_dir.with_name(f"{state_dir.name}-tasks")).absolute()
    settings = AgentSettings(
        state_dir=state_dir,
        work_dir=work_dir,
        url=options.url,
        token=_token(options),
        name=options.name,
        labels=dict(_label(text) for text in options.label),
    )
    return replace(settings, stop_tasks=options.command == "run" and options.stop_tasks)


def _token(options: argparse.Namespace) -> str | None:
    if getattr(options, "token", None):
        return str(options.token)
    if options.token_file is not None:
        try:
            return str(options.token_file.read_text(encoding="utf-8")).strip()
        except OSError as error:
            raise NotJoined(f"the token file {options.token_file} cannot be read: {error.strerror}") from error
    # Taken out of the environment, so that no child inherits it.
    return os.environ.pop(_TOKEN_VARIABLE, None) or None


def _label(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise NotJoined(f"--label: expected KEY=VALUE, found {text[:80]!r}")
    return key, value


def _default_state_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/millpond-agent")
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "millpond-agent"


def _raise_file_limit() -> None:
    """Each task takes a descriptor; the soft limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
