"""`millpond demo`: starts a stack in a folder of its own, plays the scenario, and ends with the statement."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from millpond.client.client import Client
from millpond.demo import fleet, packing, scaling, scenario, screen
from millpond.demo.interpreter import choose_python
from millpond.demo.scenario import DemoFailed
from millpond.profiles import Profile, save_profile
from millpond.stack.assembly import tasks_folder
from millpond.stack.errors import StackError
from millpond.stack.lock import find_supervisor
from millpond.stack.options import DEFAULT_PORT, StackOptions
from millpond.stack.paths import StackPaths, locate_stack
from millpond.stack.ports import find_free_port
from millpond.stack.running import RunningStack, run_stack
from millpond.stack.users import find_stack_user
from millpond_contracts.bodies.bills import ChargeView
from millpond_contracts.ids import JobId

STACK_NAME = "demo"
_JOBS_TIMEOUT_SECONDS = 90.0
_BILL_TIMEOUT_SECONDS = 20.0


@dataclass(slots=True)
class Demo:
    """One run of the demo. `cancelled` is set when the stack stops before the end.

    `descriptions` is the folder in which the stack looks for simulated nodes.
    """

    console: Console
    stay: bool
    descriptions: Path
    began: float = field(default_factory=time.monotonic)
    summary: str | None = None
    failure: str | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)

    async def on_ready(self, stack: RunningStack) -> None:
        """Plays the scenario against the running stack; afterwards stops it, or says how to go on."""
        try:
            self.summary = await asyncio.to_thread(self._play, stack)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
        if self.stay and self.failure is None:
            profile = save_profile(STACK_NAME, Profile(url=stack.options.url, api_key=stack.operator_key))
            screen.tell_how_to_go_on(self.console, stack, profile)
            return
        signal.raise_signal(signal.SIGTERM)

    def _play(self, stack: RunningStack) -> str:
        console = self.console
        console.print(f"[bold]1. The stack is ready[/bold] after {stack.seconds_to_ready:.1f} s: {stack.options.url}")
        python = choose_python(tasks_folder(stack.paths) / "python")
        if python is None:
            raise DemoFailed("no Python that tasks may run: install python3 for all users (apt-get install python3)")
        with Client(url=stack.options.url, api_key=stack.operator_key) as operator:
            node = next(iter(operator.nodes.list()))
            screen.show_node(console, node)
            prices = scenario.publish_prices(operator)
            lab, shop = scenario.prepare_tenants(operator, node, stack.options.url)
            screen.show_tenants(console, (lab, shop), prices)
            jobs = scenario.submit_jobs(lab, shop, node, python)
            screen.heading(console, "4. Jobs run as real processes")
            explanation = scenario.wait_for_explanation(shop, jobs.too_large)
            screen.show_explanation(console, explanation, jobs.too_large.name)
            # While this machine trains, one pool's nodes are ordered and boot, and another's NPUs are busy.
            wave = scaling.begin(operator, lab)
            opened = fleet.open_fleet(operator, lab, shop, self.descriptions)
            with ThreadPoolExecutor(1) as beside:
                packing_ends = beside.submit(packing.play, opened, operator, lab, shop)
                self._watch(lab, shop, jobs)
                screen.show_log(console, lab.client.logs(jobs.training.job_id))
                screen.show_fleet(console, opened)
                played = fleet.play(opened, lab, shop, lambda line: console.print(f"   {line}"))
                packed = packing_ends.result()
            screen.show_packing(console, packed)
            screen.show_scaling(console, wave, scaling.finish(operator, lab, wave))
            ran = [jobs.training, *jobs.short, *packed.ran, played.render, played.gang, played.fraction, wave.job]
            charges = self._bill(lab, shop, {job.job_id for job in ran})
            result = self._recompute(stack.paths, [charge for charge in charges if charge.node_id == node.node_id])
            screen.show_comparison(console, result)
            # Each of these began and ended on this machine, so its journal knows all of them.
            if result["unexplained"] or result["missing"]:
                lacking = f"differ from the journal for {result['unexplained']}, and it lacks {result['missing']}"
                raise DemoFailed(f"billed seconds {lacking}")
        seconds = time.monotonic() - self.began
        return (
            f"{len(ran)} jobs ran and were billed, 1 explained as unplaceable, "
            f"{len(played.stopped)} tasks made room for a gang of {len(played.started)}, "
            f"{packed.moved} moved for a larger job, a gang waited with a reason and what was kept for it was used, "
            "a pool grew and shrank, "
            f"{result['billed_seconds']} s of use billed for {result['journal_seconds']} s in the node's own journal, "
            f"in {seconds:.0f} s"
        )

    def _watch(self, lab: scenario.DemoTenant, shop: scenario.DemoTenant, jobs: scenario.DemoJobs) -> None:
        deadline = time.monotonic() + _JOBS_TIMEOUT_SECONDS
        with screen.Progress(self.console) as progress:
            while True:
                states = scenario.list_states(lab, shop, jobs)
                log = lab.client.logs(jobs.training.job_id).rstrip().splitlines()
                progress.update(states, log[-1] if log else "")
                if scenario.have_ended(states, jobs):
                    break
                if self.cancelled.is_set() or time.monotonic() > deadline:
                    raise DemoFailed("the jobs did not end in time")
                time.sleep(0.5)
        failed = scenario.failures(states, jobs)
        if failed:
            raise DemoFailed("; ".join(failed))

    def _bill(
        self, lab: scenario.DemoTenant, shop: scenario.DemoTenant, expected: Collection[JobId]
    ) -> list[ChargeView]:
        """Both statements with their lines, once every job that ran is on them."""
        deadline = time.monotonic() + _BILL_TIMEOUT_SECONDS
        while True:
            charges = {tenant.name: list(tenant.client.charges.list()) for tenant in (lab, shop)}
            everything = [charge for listed in charges.values() for charge in listed]
            written = {charge.job_id for charge in everything if charge.segment_id is not None}
            running = {charge.job_id for charge in everything if charge.segment_id is None}.intersection(expected)
            if written.issuperset(expected) and not running:
                break
            if self.cancelled.is_set() or time.monotonic() > deadline:
                raise DemoFailed(f"{len(set(expected) - written)} jobs are not on the bill, {len(running)} are in part")
            time.sleep(0.2)
        for tenant in (lab, shop):
            statement = tenant.client.statements.current()
            lines = [charge for charge in charges[tenant.name] if charge.job_id in expected]
            screen.show_statement(self.console, tenant.name, statement, lines)
        return everything

    def _recompute(self, paths: StackPaths, charges: list[ChargeView]) -> dict[str, object]:
        """Runs the script that knows nothing of Millpond, in an interpreter of its own."""
        file = paths.work / "demo-charges.json"
        file.write_text(json.dumps([charge.model_dump(mode="json") for charge in charges]), encoding="utf-8")
        script = Path(__file__).with_name("recompute.py")
        done = subprocess.run(
            [sys.executable, "-I", str(script), str(scenario.journal_folder(paths.folder)), str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.stdout:
            raise DemoFailed(f"the comparison could not be made: {done.stderr.strip()[-500:]}")
        result: dict[str, object] = json.loads(done.stdout)
        return result


def run_demo(data_folder: Path | None, port: int | None) -> int:
    """Runs the demo; the process's exit code.

    On a terminal the stack stays until Ctrl-C; without one, or with DEMO_EXIT=1, it is stopped at the end.
    """
    console = Console(highlight=False)
    stay = sys.stdout.isatty() and os.environ.get("DEMO_EXIT") != "1"
    paths = locate_stack(name=STACK_NAME, data_folder=data_folder, user=find_stack_user())
    if (pid := find_supervisor(paths.lock_file)) is not None:
        console.print(f"demo: a demo stack runs already (pid {pid}); stop it with `millpond down --name {STACK_NAME}`")
        return 1
    _forget(paths)
    with tempfile.TemporaryDirectory(prefix="millpond-demo-") as descriptions:
        options = StackOptions(
            name=STACK_NAME,
            data_folder=data_folder,
            port=port or find_free_port(DEFAULT_PORT),
            stop_tasks=True,
            simulate=(descriptions,),
            settings={"MILLPOND_SCHEDULER_HOLD_AFTER_SECONDS": str(packing.HOLD_SECONDS)},
        )
        demo = Demo(console, stay, Path(descriptions))
        try:
            asyncio.run(run_stack(options, demo.on_ready, lambda line: console.print(f"[dim]· {line}[/dim]")))
        except StackError as error:
            console.print(f"demo: failed: {error}")
            return 1
    if demo.failure is not None:
        console.print(f"demo: failed: {demo.failure}", markup=False, soft_wrap=True)
        return 1
    if demo.summary is None:
        console.print("demo: stopped; nothing is left running")
        return 130
    console.print(f"demo: ok: {demo.summary}", soft_wrap=True)
    return 0


def _forget(paths: StackPaths) -> None:
    """Removes what an earlier demo left: each demo starts from nothing. Only a demo's own folder is touched."""
    if (paths.folder / "millpond-stack").exists():
        shutil.rmtree(paths.folder)
    shutil.rmtree(tasks_folder(paths), ignore_errors=True)
