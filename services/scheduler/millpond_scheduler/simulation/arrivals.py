"""Jobs in the order in which they arrive, drawn by a seed."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millpond_scheduler.simulation.traces import TraceJob, TraceNode

MOST_ARRIVED_PERCENT = 130


@dataclass(frozen=True, slots=True)
class Arrival:
    """One arrival: the job's index in its list, and its name, with `#k` at its k-th further draw."""

    job: int
    name: str


def draw_arrivals(jobs: Sequence[TraceJob], capacity_milli: int, seed: int) -> list[Arrival]:
    """The whole list in random order, then jobs drawn with replacement, until the next would pass 130 % of capacity.

    A list that asks for more than that is cut there. Source: Weng et al., USENIX ATC 2023, section 6.

    Raises:
        ValueError: no job asks for a device, so that the load would never grow.
    """
    if not any(job.device_milli for job in jobs):
        raise ValueError("no job asks for a device")
    most, arrived = capacity_milli * MOST_ARRIVED_PERCENT // 100, 0
    arrivals: list[Arrival] = []
    draws: Counter[int] = Counter()
    for index in _draw_forever(len(jobs), random.Random(f"arrivals {seed}")):
        arrived += jobs[index].device_milli
        if arrived > most:
            return arrivals
        again = f"#{draws[index]}" if draws[index] else ""
        arrivals.append(Arrival(index, jobs[index].name + again))
        draws[index] += 1
    raise AssertionError("the draws never end")


def permute_nodes(nodes: Sequence[TraceNode], seed: int) -> list[TraceNode]:
    """The nodes in an order of the seed: it decides between nodes that rank equal, so no list's order is favoured."""
    permuted = list(nodes)
    random.Random(f"nodes {seed}").shuffle(permuted)
    return permuted


def _draw_forever(count: int, chance: random.Random) -> Iterator[int]:
    order = list(range(count))
    chance.shuffle(order)
    yield from order
    while True:
        yield chance.randrange(count)
