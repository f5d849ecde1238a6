"""What a stack of `millpond up` costs: seconds to ready, CPU at rest, memory; then jobs run and the checker judges.

Ready means that everything answers and this machine is a node that takes work.
"""

import asyncio
import time

from tests.benchmarks.figures import shorten_all, tell, tell_check
from tests.benchmarks.processes import cpu_seconds, pss_mb, sum_by_title, tree_of
from tests.system.checker import assert_sound
from tests.system.client import History, job_body, make_tenant, open_caller, publish_prices, submit, wait_for_job
from tests.system.stack import Stack

WARM_RUNS = 3
REST_SECONDS = 20.0
IDLE_SECONDS = 20.0
JOBS = 10


def measure() -> None:
    """The compact stack, then the split one."""
    _measure(split=False)
    _measure(split=True)


def _measure(*, split: bool) -> None:
    stack = Stack.make(split=split)
    suffix = ".split" if split else ""
    try:
        seconds, cpu = _start(stack)
        tell(f"stack.cold_ready_s{suffix}", [seconds], "s", cpu_s=cpu)
        warm = []
        for _ in range(1 if split else WARM_RUNS):
            stack.stop()
            warm.append(_start(stack))
        tell(
            f"stack.warm_ready_s{suffix}",
            [seconds for seconds, _ in warm],
            "s",
            bar=None if split else "<= 8",
            cpu_s=[cpu for _, cpu in warm],
        )
        _measure_rest(stack, suffix)
        asyncio.run(_use_and_check(stack, f"stack{suffix}"))
    finally:
        stack.close()


def _start(stack: Stack) -> tuple[float, float]:
    """Seconds until ready, and the CPU seconds that this took, which neighbours on the machine do not lengthen."""
    began = time.monotonic()
    stack.start(timeout_seconds=120.0)
    seconds = time.monotonic() - began
    return seconds, round(sum(cpu_seconds(tree_of(stack), with_ended=True).values()), 2)


def _measure_rest(stack: Stack, suffix: str) -> None:
    time.sleep(REST_SECONDS)
    pids = tree_of(stack)
    before, began = cpu_seconds(pids), time.monotonic()
    time.sleep(IDLE_SECONDS)
    passed = time.monotonic() - began
    used = {pid: (after - before[pid]) / passed * 100 for pid, after in cpu_seconds(pids).items()}
    shares = {title: share for title, share in sum_by_title(used).items() if share >= 0.05}
    bar = None if suffix else "<= 5"
    tell(f"stack.idle_cpu_percent{suffix}", [sum(used.values())], "% of a core", bar=bar, by=shorten_all(shares))
    memory = pss_mb(tree_of(stack))
    parts = {title: size for title, size in sum_by_title(memory).items() if size >= 10}
    bar = "about 1000" if suffix else "<= 600"
    tell(f"stack.pss_mb{suffix}", [sum(memory.values())], "MB", bar=bar, processes=len(memory), by=shorten_all(parts))


async def _use_and_check(stack: Stack, name: str) -> None:
    """Runs real jobs to their end and holds the independent checker against everything that they left."""
    history, findings = History(), []
    async with open_caller(stack.url, stack.operator_key) as operator:
        await publish_prices(operator)
        tenant = await make_tenant(operator, "bench")
        jobs = [
            await submit(tenant, history, job_body(tenant.virtual_pool, f"job-{index}", ["/bin/sleep", "1"]))
            for index in range(JOBS)
        ]
        for job in jobs:
            await wait_for_job(tenant, job, seconds=60)
        try:
            await assert_sound(stack, operator, history)
        except AssertionError as error:
            findings = str(error).splitlines()
    tell_check(name, findings)
