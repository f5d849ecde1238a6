"""What the scheduler would do with recorded jobs: `simulate ...`; its code runs on this machine, no stack is needed."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from millpond.cli.session import MACHINES

_SIMULATOR = "millpond_scheduler.simulation"
# What the simulator computes with; it comes with the server.
_NEEDED = ("millpond_scheduler", "numpy")

simulate = typer.Typer(
    name="simulate", help="Try the scheduler on recorded jobs, without a stack.", no_args_is_help=True
)


@simulate.command("placement")
def simulate_placement(
    nodes: Annotated[
        Path, typer.Option(metavar="FILE", help="CSV: sn, cpu_milli, memory_mib, gpu (devices), model.", exists=True)
    ],
    jobs: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="CSV: cpu_milli, memory_mib, num_gpu, gpu_milli (per device); name, gpu_spec, and for the protocol "
            "trace submit_s, duration_s, time_limit_s, tasks (a gang of so many) if there are any.",
            exists=True,
        ),
    ],
    protocol: Annotated[
        str,
        typer.Option(
            help="openb: jobs arrive until 130 % of the devices were asked for; none waits or ends. "
            "trace: jobs arrive, wait, run and end at the times of the list."
        ),
    ] = "openb",
    policy: Annotated[
        str, typer.Option(help="Which policy decides: default (the product's), unpriced, best-fit, random.")
    ] = "default",
    tune: Annotated[
        bool, typer.Option("--tune", help="First choose the setting that packs resampled histories of these jobs best.")
    ] = False,
    history: Annotated[
        str,
        typer.Option(help="From what the pool learns what usually comes: jobs (the whole list) or arrivals (so far)."),
    ] = "jobs",
    load: Annotated[
        float | None,
        typer.Option(help="trace: press or stretch the arrivals until they ask for so many times the devices; 1.1."),
    ] = None,
    time_limits: Annotated[
        float | None,
        typer.Option(help="trace: give jobs without one a time limit of so many times their duration; 1.5."),
    ] = None,
    no_holds: Annotated[
        bool, typer.Option("--no-holds", help="trace: keep no node free for those that waited too long, to compare.")
    ] = False,
    step_seconds: Annotated[int, typer.Option(min=1, help="trace: seconds from one decision to the next.")] = 10,
    seeds: Annotated[str, typer.Option(help="One run each: 42-51, or 1,3,8-9.")] = "42",
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the figures of each seed and their mean, as JSON.")
    ] = None,
    allocations: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what became of every arrival, as CSV.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the curves (.png, .svg, .pdf); needs millpond\\[plots].")
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Seeds at a time; by default one per CPU.")] = None,
) -> None:
    """Place recorded jobs on a list of nodes as the scheduler would, and tell how well they pack.

    The same files and seeds give the same report and allocations, byte by byte.
    """
    given = {
        "--nodes": nodes,
        "--jobs": jobs,
        "--protocol": protocol,
        "--policy": policy,
        "--history": history,
        "--load": load,
        "--time-limits": time_limits,
        "--step-seconds": step_seconds,
        "--seeds": seeds,
        "--report": report,
        "--allocations": allocations,
        "--plot": plot,
        "--processes": processes,
    }
    options = [f"{option}={value}" for option, value in given.items() if value is not None]
    switches = {"--tune": tune, "--no-holds": no_holds}
    _run("placement", *options, *(switch for switch, is_on in switches.items() if is_on))


def _run(*arguments: str) -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise typer.BadParameter(
            f'this needs the server extra (missing: {", ".join(missing)}): pip install "millpond[server]"'
        )
    done = subprocess.run([sys.executable, "-P", "-m", _SIMULATOR, *arguments], check=False)
    if done.returncode != 0:
        raise typer.Exit(done.returncode)


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.add_typer(simulate, rich_help_panel=MACHINES)
