"""What the demo shows: tables for a person on a terminal, plain lines elsewhere."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millpond.demo.fleet import GPU_NODES, NPU_NODES, PER_NODE, Fleet
from millpond.demo.packing import Packed
from millpond.demo.scaling import Wave
from millpond.demo.scenario import DemoTenant
from millpond.stack.running import RunningStack
from millpond_contracts.bodies.bills import ChargeKind, ChargeView, PriceVersionView, StatementView
from millpond_contracts.bodies.jobs import JobView
from millpond_contracts.bodies.nodes import NodeView
from millpond_contracts.bodies.scaling import ScalingDecisionView
from millpond_contracts.bodies.verdicts import Explanation
from millpond_contracts.prices import exact_sum
from millpond_contracts.quantities import ExactDecimal, plain_decimal

_UNITS = {"device": "device", "cpu": "core", "memory": "GiB"}
_STATE_STYLES = {"running": "cyan", "succeeded": "green", "failed": "red", "pending": "yellow"}


def heading(console: Console, text: str) -> None:
    """A step of the demo."""
    console.print(f"\n[bold]{text}[/bold]")


def show_node(console: Console, node: NodeView) -> None:
    """This machine as it registered itself."""
    heading(console, "2. This machine joined with its real hardware")
    console.print(
        f"   {node.name} ({node.arch}): {node.cpu_milli / 1000:g} cores and {node.memory_mib / 1024:.1f} GiB for jobs"
    )
    for device in node.devices:
        memory = "unknown memory" if device.memory_mib is None else f"{device.memory_mib / 1024:.0f} GiB"
        console.print(
            f"   {device.kind.value} {device.model or device.vendor}: {memory},"
            f" flavor {device.flavor}, {device.health.value}"
        )
    if not node.devices:
        console.print("   no accelerator found: the demo uses its CPU")


def show_tenants(console: Console, tenants: Sequence[DemoTenant], prices: PriceVersionView) -> None:
    """Who may hold how much, and at what price."""
    heading(console, "3. Two tenants, each with a share of it")
    table = Table("tenant", "virtual pool", "guaranteed", "at most", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for tenant in tenants:
        cpu, memory = tenant.virtual_pool.limits.cpu, tenant.virtual_pool.limits.memory
        table.add_row(
            f"   {tenant.name}",
            tenant.virtual_pool.name,
            f"{cpu.guaranteed / 1000:g} cores, {memory.guaranteed / 1024:.1f} GiB",
            f"{cpu.cap / 1000:g} cores, {memory.cap / 1024:.1f} GiB",
        )
    console.print(table)
    words = ", ".join(f"{plain_decimal(line.per_hour)} a {_UNITS[line.sku.split('/')[0]]}" for line in prices.lines)
    console.print(
        f"   prices of the demo, {prices.currency} an hour: {words}; at least {prices.minimum_seconds} s a task"
    )


def show_explanation(console: Console, explanation: Explanation, name: str) -> None:
    """Why a job waits."""
    counts = ", ".join(f"{count} × {reason.replace('_', ' ')}" for reason, count in explanation.counts.items())
    console.print(f"   [yellow]{name}[/yellow] waits: {explanation.message}")
    console.print(f"   nodes looked at: {explanation.nodes} ({counts or 'no reason counted'})")
    for advice in explanation.would_unblock[:2]:
        console.print(f"   would help: {advice.action}: {advice.effect}")


def show_fleet(console: Console, fleet: Fleet) -> None:
    """The simulated nodes and whose they are."""
    heading(console, "6. A simulated fleet beside it, for what this machine has too little of")
    nodes = f"{GPU_NODES} nodes of {PER_NODE} x {fleet.gpu} and {NPU_NODES} of {PER_NODE} x {fleet.npu}"
    console.print(f"   {nodes} joined and are ready after {fleet.seconds:.1f} s")
    for share in (fleet.lab, fleet.shop):
        limit = share.limits.devices[fleet.gpu]
        console.print(
            f"   {share.name}: {limit.guaranteed // 1000} GPUs guaranteed, {limit.borrow // 1000} more to borrow,"
            f" {limit.lend // 1000} lent while unused"
        )


def show_packing(console: Console, packed: Packed) -> None:
    """What was moved, what waited and why, and what was kept for it."""
    heading(console, "7. Meanwhile, on the fleet's NPUs: a task was moved for a larger job, and a gang waited its turn")
    for line in packed.lines:
        console.print(f"   {line}")


def show_scaling(console: Console, wave: Wave, decisions: Sequence[ScalingDecisionView]) -> None:
    """How a pool grew and shrank, and why."""
    heading(console, "8. Meanwhile a pool without nodes grew under queued work, and shrank again")
    tasks = sum(group.count for group in wave.job.groups)
    console.print(f"   {wave.job.name} asked for {tasks} devices in a pool of none; all its tasks ran")
    began = decisions[0].decided_at
    for one in decisions:
        after = (one.decided_at - began).total_seconds()
        console.print(f"   +{after:4.1f} s  {one.action.value.replace('_', ' ')} {one.nodes}: {one.reason}")


class Progress:
    """The jobs as they run: a table that is redrawn on a terminal, a line per change elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._told: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, jobs: Sequence[JobView], last_line: str) -> None:
        """Shows the present states and the training's last line."""
        if self._live is not None:
            self._live.update(_jobs_table(jobs, last_line))
            return
        for job in jobs:
            if self._told.get(str(job.job_id)) != job.state.value:
                self._told[str(job.job_id)] = job.state.value
                self._console.print(f"   {job.name:<14} {job.state.value}")
        if last_line and self._told.get("log") != last_line:
            self._told["log"] = last_line
            self._console.print(f"   train-spirals  | {last_line}", markup=False)


def _jobs_table(jobs: Sequence[JobView], last_line: str) -> Table:
    table = Table("   job", "state", "says", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for number, job in enumerate(jobs):
        state = job.state.value
        says = last_line if number == 0 else (job.message or "" if state != "succeeded" else "")
        table.add_row(f"   {job.name}", Text(state, _STATE_STYLES.get(state, "")), Text(says[:70]))
    return table


def show_log(console: Console, log: str) -> None:
    """The end of the training's own output, as the API gives it."""
    heading(console, "5. The training's log, read back through the API")
    lines = log.rstrip().splitlines()
    for line in [*lines[:2], "…", *lines[-3:]] if len(lines) > 6 else lines:
        console.print(f"   {line}", markup=False)


def show_statement(console: Console, name: str, statement: StatementView, lines: Sequence[ChargeView]) -> None:
    """A tenant's statement: a line a job, and the exact lines behind the shortest of them."""
    heading(console, f"9. Statement of {name}: {plain_decimal(statement.total.amount)} {statement.currency}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("   job", "seconds used", "to the minimum", "exact amount"):
        table.add_column(title, justify="left" if title == "   job" else "right", no_wrap=True)
    jobs = {line.job_id: line.job_name for line in sorted(lines, key=lambda line: line.job_name or "")}
    for job_id, job_name in jobs.items():
        own = [line for line in lines if line.job_id == job_id]
        seconds = [
            sum(one.seconds or 0 for one in own if one.kind is kind and (one.sku or "").startswith("cpu/"))
            for kind in (ChargeKind.USAGE, ChargeKind.MINIMUM)
        ]
        amount = exact_sum(one.amount.amount for one in own)
        table.add_row(f"   {job_name}", str(seconds[0]), str(seconds[1]), plain_decimal(amount))
    rounding = statement.subtotals.get(ChargeKind.ROUNDING)
    if rounding is not None:
        table.add_row("   rounding, once", "", "", plain_decimal(rounding.amount))
    table.add_row("   total", "", "", plain_decimal(statement.total.amount), style="bold")
    console.print(table)
    first = min(jobs, key=lambda job: sum(one.job_id == job for one in lines), default=None)
    console.print(f"   the lines behind {jobs[first]}:" if first else "")
    for line in (one for one in lines if one.job_id == first):
        console.print(
            f"     {line.kind.value:<9} {(line.sku or '').split('/')[0]:<7}"
            f"{plain_decimal(line.quantity or ExactDecimal(0)):>7} x {line.seconds or 0:>3} s"
            f" at {plain_decimal(line.per_hour or ExactDecimal(0))}/h = {plain_decimal(line.amount.amount)}"
        )


def show_comparison(console: Console, result: dict[str, object]) -> None:
    """What a script that imports none of our code found in the node's own journal."""
    heading(console, "10. Recomputed from the node's own journal, by a script that imports none of our code")
    console.print(f"   journal  {result['journal_seconds']} s in {result['allocations']} allocations")
    console.print(
        f"   billed   {result['billed_seconds']} s of use, and {result['minimum_seconds']} s by the minimum charge"
    )
    rows = result["rows"]
    assert isinstance(rows, list)
    for row in rows:
        if row["difference"] != 0:
            seconds = "" if row["difference"] is None else f"{row['difference']:+d} s, "
            console.print(f"   {row['allocation']}: {seconds}{row['difference_is']}")
    is_proved = not (result["unexplained"] or result["missing"])
    console.print("   every difference has a name" if is_proved else "   [red]unexplained differences[/red]")


def tell_how_to_go_on(console: Console, stack: RunningStack, profile: Path) -> None:
    """After the demo on a terminal: the stack stays."""
    console.print(f"\n[bold]The stack stays.[/bold] The command line's profile is {profile}; in another terminal:")
    console.print("   millpond status | nodes | ps | bill --tenant lab", markup=False)
    console.print("   millpond submit --virtual-pool lab-share --cpu 1 --memory 256MiB -- echo hello", markup=False)
    console.print(f"   operator key: {stack.operator_key_file}")
    console.print("   Ctrl-C here, or `millpond down --name demo`, stops everything\n")
