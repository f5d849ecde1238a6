"""The commands about the stack of this machine: `up`, `down`, `migrate`, `rebuild`, `dead-letters`."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from millpond.demo.running import run_demo
from millpond.profiles import Profile, list_profiles, save_profile
from millpond.stack.backups import make_backup, restore_backup
from millpond.stack.engines import is_running
from millpond.stack.errors import StackAlreadyRunning, StackError
from millpond.stack.examining import Finding, examine
from millpond.stack.keys import operator_key_file, read_environment
from millpond.stack.lock import find_supervisor, stop_supervisor
from millpond.stack.options import DEFAULT_PORT, StackOptions
from millpond.stack.paths import StackPaths, locate_stack
from millpond.stack.processes import ProcessState
from millpond.stack.running import RunningStack, run_stack
from millpond.stack.status import read_status
from millpond.stack.users import find_stack_user

PANEL = "This stack"

Name = Annotated[str, typer.Option(help="Tells several stacks of one user apart.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder that holds everything the stack keeps.")]

_errors = Console(stderr=True)


def locate(name: str, data_dir: Path | None) -> StackPaths:
    """Where the stack of these options lies."""
    return locate_stack(name=name, data_folder=data_dir, user=find_stack_user())


def up(
    split: Annotated[bool, typer.Option("--split", help="Every service's processes on their own.")] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the one base URL.")] = DEFAULT_PORT,
    listen: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines join.")] = "127.0.0.1",
    data_dir: DataDir = None,
    name: Name = "default",
    database_url: Annotated[
        str | None, typer.Option(envvar="MILLPOND_OWNER_DATABASE_URL", help="Owner's URL of a PostgreSQL to use.")
    ] = None,
    redis_url: Annotated[
        str | None, typer.Option(envvar="MILLPOND_REDIS_URL", help="URL of a Redis or Valkey to use.")
    ] = None,
    node: Annotated[bool, typer.Option("--node/--no-node", help="Whether this machine joins as a node.")] = True,
    simulate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH", help="Run the simulated nodes of this file, folder, or `openb:N`; may be repeated."
        ),
    ] = None,
    stop_tasks: Annotated[
        bool, typer.Option("--stop-tasks", help="Stop running tasks with the stack; else they run on.")
    ] = False,
) -> None:
    """Start the whole stack on this machine and keep it running until Ctrl-C or `millpond down`."""
    options = StackOptions(
        name=name,
        data_folder=data_dir,
        port=port,
        listen=listen,
        split=split,
        database_url=database_url,
        redis_url=redis_url,
        join_node=node,
        simulate=tuple(_absolute(path) for path in simulate or ()),
        stop_tasks=stop_tasks,
    )
    console = Console()

    def tell(line: str) -> None:
        console.print(f"[dim]· {line}[/dim]", highlight=False)

    async def on_ready(stack: RunningStack) -> None:
        tell_ready(console, stack)

    try:
        asyncio.run(run_stack(options, on_ready, tell))
    except StackAlreadyRunning as error:
        _explain_running(locate(name, data_dir), error)
        raise typer.Exit(1) from error
    except StackError as error:
        _errors.print(f"[bold red]millpond up:[/bold red] {error}", highlight=False)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as interrupt:
        # Before the supervisor listens, such as while a database is being made.
        console.print("stopped before it had started; nothing is left running", highlight=False)
        raise typer.Exit(130) from interrupt
    console.print("stopped; nothing is left running", highlight=False)


def tell_ready(console: Console, stack: RunningStack) -> None:
    """Keeps the profile of the stack's name, and says where everything is."""
    url, name = stack.options.url, stack.options.name
    file = save_profile(name, Profile(url=url, api_key=stack.operator_key))
    ready = f"[bold green]Millpond is ready[/bold green] after {stack.seconds_to_ready:.1f} s"
    for line in (
        f"\n{ready}",
        f"  address       {url}   (API docs: {url}/docs/scheduler)",
        f"  operator key  {stack.operator_key_file}  (0600)",
        f"  profile       {name} in {file}",
        f"  data          {stack.paths.folder}",
        "  stop          Ctrl-C, or `millpond down`; starting again loses nothing\n",
    ):
        console.print(line, highlight=False)


def _absolute(path: str) -> str:
    """The same place for a process with another working folder; the name of an example stays."""
    return path if path.partition(":")[0] == "openb" else str(Path(path).expanduser().absolute())


def down(data_dir: DataDir = None, name: Name = "default") -> None:
    """Stop the stack that runs on this machine."""
    paths = locate(name, data_dir)
    try:
        stopped = stop_supervisor(paths.lock_file)
    except StackError as error:
        _errors.print(f"[bold red]millpond down:[/bold red] {error}", highlight=False)
        raise typer.Exit(1) from error
    Console().print(f"stopped the stack in {paths.folder}" if stopped else f"no stack runs in {paths.folder}")


def _explain_running(paths: StackPaths, error: StackAlreadyRunning) -> None:
    _errors.print(f"[bold]{error}[/bold]", highlight=False)
    status = read_status(paths.status_file)
    for process in status.processes if status else ():
        if process.pid is not None and is_running(process.pid):
            _errors.print(f"  {process.name:<18} {process.state.value:<10} pid {process.pid}", highlight=False)
    failing = [p.name for p in status.processes if p.state is ProcessState.BACKING_OFF] if status else []
    if failing:
        _errors.print(f"  restarting again and again: {', '.join(failing)}; see {paths.logs}", highlight=False)
    _errors.print(
        f"Use it (operator key: {operator_key_file(paths)}), or stop it with `millpond down`.", highlight=False
    )


def demo(
    data_dir: DataDir = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port; by default a free one.")] = None,
) -> None:
    """Show the whole chain on this machine, from nothing to an exact bill, in a folder of its own."""
    raise typer.Exit(run_demo(data_dir, port))


def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; it holds keys, so only you can read it.")],
    data_dir: DataDir = None,
    name: Name = "default",
) -> None:
    """Write everything a stack keeps into one file, while it runs or when it is stopped."""
    try:
        manifest = make_backup(locate(name, data_dir), file)
    except (StackError, OSError) as error:
        _errors.print(f"[bold red]millpond backup:[/bold red] {error}", highlight=False)
        raise typer.Exit(1) from error
    size = file.stat().st_size / 1024**2
    Console().print(
        f"wrote {file} ({size:.1f} MiB, database {manifest['database_sha256']}); it holds keys: keep it safe"
    )


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `millpond backup` wrote.", exists=True, dir_okay=False)],
    data_dir: DataDir = None,
    name: Name = "default",
) -> None:
    """Make a stack in a new folder from a backup; start it afterwards with `millpond up`."""
    paths, console = locate(name, data_dir), Console()
    try:
        manifest = restore_backup(paths, file, lambda line: console.print(f"[dim]· {line}[/dim]", highlight=False))
    except (StackError, OSError) as error:
        _errors.print(f"[bold red]millpond restore:[/bold red] {error}", highlight=False)
        raise typer.Exit(1) from error
    where = f" --data-dir {data_dir}" if data_dir else "" if name == "default" else f" --name {name}"
    console.print(
        f"restored the stack of {manifest['made_at']} into {paths.folder}; start it with `millpond up{where}`"
    )


def doctor(
    url: Annotated[str | None, typer.Option(help="Base URL of the stack; by default the profile's.")] = None,
    data_dir: DataDir = None,
    name: Name = "default",
) -> None:
    """Examine this machine and the stack on it: what is wrong, and what to do. Exits with 1 when something is bad."""
    profile = list_profiles()[1].get(name)
    console, bad = Console(), False
    for check in examine(locate(name, data_dir), url or (profile.url if profile else None)):
        style = {"good": "green", "attention": "yellow", "bad": "bold red"}.get(check.finding.value, "dim")
        console.print(f"[{style}]{check.finding.value:<10}[/{style}] {check.subject}: {check.found}", highlight=False)
        if check.remedy and check.finding is not Finding.GOOD:
            console.print(f"           → {check.remedy}", highlight=False)
        bad = bad or check.finding is Finding.BAD
    raise typer.Exit(1 if bad else 0)


def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Only say what would be done; exits with 1 if anything.")
    ] = False,
) -> None:
    """Bring a database to this version (MILLPOND_OWNER_DATABASE_URL names it); services never do it themselves."""
    _run_module("millpond_kernel.migrate", *(("--check",) if check else ()))


def rebuild(
    service: Annotated[str, typer.Argument(help="The service that keeps the view.")],
    consumer: Annotated[str, typer.Argument(help="The consumer whose view is loaded anew.")],
    data_dir: DataDir = None,
    name: Name = "default",
) -> None:
    """Load a service's copy of another service's data anew."""
    _run_module("millpond_kernel.rebuild", service, consumer, paths=locate(name, data_dir))


def dead_letters(
    service: Annotated[str, typer.Argument(help="The service whose consumers parked events.")],
    replay: Annotated[int | None, typer.Option(help="Apply this parked event once more.")] = None,
    data_dir: DataDir = None,
    name: Name = "default",
) -> None:
    """List events that were parked because they kept failing, and replay them."""
    arguments = [] if replay is None else ["--replay", str(replay)]
    _run_module("millpond_kernel.dead_letters", service, *arguments, paths=locate(name, data_dir))


def _run_module(module: str, *arguments: str, paths: StackPaths | None = None) -> None:
    """Runs a server module in the environment of the running stack, or in this one when the services' URLs are set."""
    environment = dict(os.environ)
    if paths is not None and find_supervisor(paths.lock_file) is not None:
        environment |= read_environment(paths)
    done = subprocess.run([sys.executable, "-P", "-m", module, *arguments], env=environment, check=False)
    if done.returncode != 0:
        raise typer.Exit(done.returncode)


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    for command in (up, down, demo, doctor, backup, restore, migrate, rebuild):
        app.command(rich_help_panel=PANEL)(command)
    app.command("dead-letters", rich_help_panel=PANEL)(dead_letters)
