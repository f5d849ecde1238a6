"""What one heartbeat, one idle poll and one read cost: CPU of each process of the stack, without what it takes idle.

CPU time, unlike a delay, says nearly the same on a machine that others use too.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from millpond_node_agent.control_plane import HEARTBEAT, POLL
from tests.benchmarks.connection import Connection, request
from tests.benchmarks.crowd import CrowdAgent
from tests.benchmarks.figures import shorten_all, tell
from tests.benchmarks.processes import cpu_seconds, sum_by_title, tree_of
from tests.system.stack import Stack

RATE = 40.0
SECONDS = 8.0
# Each is spoken to in every second, so that none falls silent and each has had its first poll before it counts.
AGENTS_ASKED = int(RATE)
ASKED = int(RATE * SECONDS)
CONNECTIONS = 48


async def measure_costs(stack: Stack, crowd: list[CrowdAgent], key: str) -> None:
    """Asks at a steady rate for one kind of thing after the other. The agents do nothing by themselves meanwhile.

    Args:
        stack: that is at rest, with at most AGENTS_ASKED nodes.
        crowd: those nodes' agents.
        key: of whoever reads.
    """
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await Connection.open(stack.port))
    paths = itertools.cycle(("/v1/jobs?limit=20", "/v1/me"))
    agents = itertools.cycle(crowd)

    def beat() -> bytes:
        agent = next(agents)
        return request("POST", HEARTBEAT, agent.token, agent.heartbeat_body())

    def poll() -> bytes:
        agent = next(agents)
        return request("POST", POLL, agent.token, agent.poll_body(0.0))

    def read() -> bytes:
        return request("GET", next(paths), key)

    seconds, spent = await _spend(stack, lambda: asyncio.sleep(SECONDS))
    idle = {title: each / seconds for title, each in spent.items()}
    tell("load.idle_cores", [sum(idle.values())], "cores", by=_shorten(idle))
    for name, make in (("heartbeat", beat), ("idle_poll", poll), ("read", read)):
        answers = Counter[int]()
        await _send(free, make, 1.0, answers)
        answers.clear()
        seconds, spent = await _spend(stack, partial(_send, free, make, SECONDS, answers))
        each = {title: (all_ - idle.get(title, 0.0) * seconds) * 1000 / ASKED for title, all_ in spent.items()}
        tell(
            f"load.cpu_ms.{name}",
            [sum(each.values())],
            "ms",
            by=_shorten(each),
            answers={str(status): n for status, n in answers.items()},
        )
    while not free.empty():
        free.get_nowait().close()


async def _spend(stack: Stack, act: Callable[[], Awaitable[None]]) -> tuple[float, dict[str, float]]:
    """Seconds that `act` took and one more, since some of the work follows; and the CPU seconds meanwhile, by title."""
    before, began = cpu_seconds(tree_of(stack)), time.monotonic()
    await act()
    await asyncio.sleep(1.0)
    after = cpu_seconds(tree_of(stack))
    spent = sum_by_title({pid: seconds - before.get(pid, 0.0) for pid, seconds in after.items()})
    return time.monotonic() - began, spent


async def _send(
    free: asyncio.Queue[Connection], make: Callable[[], bytes], seconds: float, answers: Counter[int]
) -> None:
    async def one() -> None:
        connection = await free.get()
        try:
            status, _ = await connection.exchange(make())
        finally:
            free.put_nowait(connection)
        answers[status] += 1

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(int(RATE * seconds)):
            await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
            group.create_task(one())


def _shorten(values: dict[str, float]) -> dict[str, float]:
    return shorten_all({title: value for title, value in values.items() if value >= 0.005})
