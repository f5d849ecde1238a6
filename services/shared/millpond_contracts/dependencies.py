"""Which groups of a job wait for which: the stages of its graph. For the job's own checks, plans and the scheduler."""

from collections.abc import Collection, Mapping

# The longest chain of groups of which each waits for the one before.
MAX_STAGES = 32


def find_stages(after: Mapping[str, Collection[str]]) -> dict[str, int]:
    """How many groups stand before each group on the longest way to it: 0 = it waits for none.

    Args:
        after: by group the groups that it waits for.

    Raises:
        ValueError: a group waits for an unknown one, for itself in the end, or behind too many; the message says which.
    """
    for name, before in after.items():
        unknown = sorted(set(before) - after.keys())
        if unknown:
            raise ValueError(f"group {name!r}: after: there is no group {unknown[0]!r}")
    stages: dict[str, int] = {}
    while len(stages) < len(after):
        ready = [name for name, before in after.items() if name not in stages and stages.keys() >= set(before)]
        if not ready:
            name = next(name for name in after if name not in stages)
            raise ValueError(f"group {name!r}: after: in the end it waits for itself")
        stages |= {name: max((stages[one] + 1 for one in after[name]), default=0) for name in ready}
    deepest = max(stages, key=lambda name: stages[name])
    if stages[deepest] >= MAX_STAGES:
        raise ValueError(
            f"group {deepest!r}: after: at most {MAX_STAGES} groups wait for one another in a row,"
            f" found {stages[deepest] + 1}"
        )
    return stages
