"""What gangs of `churn` would have waited at least, whatever nodes are kept for them, as long as nothing is stopped."""

from collections.abc import Iterable, Mapping, Sequence

from millpond_scheduler.simulation.replay import Replayed
from millpond_scheduler.simulation.traces import TraceJob, TraceNode
from tests.benchmarks.figures import percentile, tell


def is_enough(node: TraceNode, job: TraceJob) -> bool:
    """Whether a node could take a job when empty."""
    return (
        node.devices >= job.devices
        and node.cpu_milli >= job.cpu_milli
        and node.memory_mib >= job.memory_mib
        and (not job.models or node.model in job.models)
    )


def tell_bounds(
    name: str, nodes: Sequence[TraceNode], jobs: Sequence[TraceJob], played: Replayed, judged_s: int
) -> None:
    """Print how long gangs on one node would have waited, had nodes taken nothing but gangs from the beginning on.

    A node is free when the devices that were taken at the beginning are; gangs take nodes in the order of age, each the
    one where it starts first, of such the smallest. `by_limits` is the same if all ran to their limits.

    Args:
        judged_s: gangs that came until then are judged.
    """
    first = {job.name: job for job in jobs if job.name.startswith("first")}
    begun = [(run.node, first[run.job]) for run in played.runs if run.start_s == 0 and run.job in first and run.devices]
    gangs = sorted((job for job in jobs if job.name.startswith("gang")), key=lambda job: job.submit_s or 0)
    by_truth = _wait_in_turn(nodes, gangs, _free_at(nodes, ((node, job.duration_s or 0) for node, job in begun)))
    by_limits = _wait_in_turn(nodes, gangs, _free_at(nodes, ((node, job.time_limit_s or 0) for node, job in begun)))
    judged = [job for job in gangs if (job.submit_s or 0) <= judged_s]
    longest = played.end_s - judged_s
    tell(
        f"{name}.bound.gang_wait_p95_s",
        [percentile([by_truth[job.name] for job in judged], 0.95)],
        "s",
        in_time_percent=round(100 * sum(by_truth[job.name] <= longest for job in judged) / len(judged), 1),
        by_limits_p95_s=percentile([by_limits[job.name] for job in judged], 0.95),
    )


def group_by_nodes(nodes: Sequence[TraceNode], gangs: Iterable[TraceJob]) -> dict[str, int]:
    """How many nodes could take each gang when empty, by its name."""
    kinds: dict[tuple[int, int], int] = {}
    for gang in gangs:
        key = (gang.cpu_milli, gang.memory_mib)
        kinds.setdefault(key, sum(is_enough(node, gang) for node in nodes))
    return {gang.name: kinds[gang.cpu_milli, gang.memory_mib] for gang in gangs}


def _free_at(nodes: Sequence[TraceNode], ends: Iterable[tuple[str, int]]) -> dict[str, int]:
    free_at = {node.name: 0 for node in nodes}
    for node, end in ends:
        free_at[node] = max(free_at[node], end)
    return free_at


def _wait_in_turn(nodes: Sequence[TraceNode], gangs: Sequence[TraceJob], free_at: dict[str, int]) -> Mapping[str, int]:
    able: dict[tuple[int, int], list[TraceNode]] = {}
    waits = {}
    for gang in gangs:
        came, key = gang.submit_s or 0, (gang.cpu_milli, gang.memory_mib)
        if key not in able:
            able[key] = [node for node in nodes if is_enough(node, gang)]
        best = min(able[key], key=lambda node: (max(free_at[node.name], came), node.cpu_milli, node.name))
        start = max(free_at[best.name], came)
        free_at[best.name] = start + (gang.duration_s or 0)
        waits[gang.name] = start - came
    return waits
