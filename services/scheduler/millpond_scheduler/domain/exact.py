"""A place for a gang of several groups where the greedy search found none: one constraint program, solved exactly.

The greedy search gives each group what is best for it, and so may take what only another group could use. Here all
groups are asked side by side (OR-Tools CP-SAT, decision 127): how many tasks of each go to each node. What comes out is
placed through the same checks as everything else. OR-Tools is loaded when it is first asked, for most pools never.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import combinations
from typing import Any

import numpy as np

from millpond_scheduler.domain.apart import find_apart
from millpond_scheduler.domain.candidates import CandidateCache, Candidates
from millpond_scheduler.domain.columns import ABSENT
from millpond_scheduler.domain.gangs import count_fitting
from millpond_scheduler.domain.grounds import MAX_GROUNDS, Ground, Runs
from millpond_scheduler.domain.neighbours import selector_of
from millpond_scheduler.domain.plans import Search
from millpond_scheduler.domain.requests import Bound, QueuedTask
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.together import can_place_together
from millpond_scheduler.domain.views import RowView

# Deterministic seconds of the solver, so that the same question has the same answer on every machine; and seconds of
# this one, which only a machine that is far slower than any known reaches.
WORK, SECONDS = 0.1, 2.0
# So many nodes of each group are asked, the best by rank, and so many groups.
MAX_ROWS, MAX_GROUPS = 512, 8
# A gang that was searched for in vain is not searched for again within so long; so many gangs are remembered.
AGAIN_US, MAX_REMEMBERED = 1_000_000, 64


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it; where something was found, per group the rows with how many tasks each takes."""

    search: Search
    rows: tuple[tuple[tuple[int, int], ...], ...] = ()


@dataclass(slots=True)
class _Group:
    """One group of the gang: the rows closed to it, its own in order, and how many tasks each takes by itself."""

    tasks: tuple[QueuedTask, ...]
    candidates: Candidates
    closed: frozenset[int]
    rows: list[int]
    most: dict[int, int]
    variables: dict[int, Any] = field(default_factory=dict)


def find_exactly(
    cache: CandidateCache, runs: Runs, closed: frozenset[int], grounds: Sequence[Ground], now_us: int
) -> Found | None:
    """Where all groups find room together; None where it is not asked, as no answer could help.

    That is where some group has too little room by itself, or takes devices that are not known beforehand (slices, or
    one of several flavors on a node): those are left to the greedy search. Nor is it asked twice in a second.

    Args:
        closed: rows that the gang may not use.
        grounds: where it may stand together; of these the first with a way is taken.
        now_us: the instant of the decision.
    """
    first = runs[0][0][0].id
    if not 1 < len(runs) <= MAX_GROUPS or not all(can_place_together(candidates) for _, candidates in runs):
        return None
    if 0 <= now_us - cache.searched_us.get(first, -AGAIN_US) < AGAIN_US:
        return None
    hard = [ground for ground in grounds if not ground.is_preferred]
    tried = [[_measure(cache.snapshot, run, candidates, closed, ground) for run, candidates in runs] for ground in hard]
    roomy = [each for each in tried if all(sum(group.most.values()) >= len(group.tasks) for group in each)]
    found = None
    for groups in roomy:
        found = _solve(cache.snapshot, groups, WORK / len(roomy), found)
        if found.search is Search.FOUND:
            cache.searched_us.pop(first, None)
            return found
    if found is not None:
        cache.searched_us.pop(first, None)
        cache.searched_us[first] = now_us
        while len(cache.searched_us) > MAX_REMEMBERED:
            del cache.searched_us[next(iter(cache.searched_us))]
    return found if found is None or len(hard) < MAX_GROUNDS else Found(Search.UNDECIDED)


def _solve(snapshot: Snapshot, groups: Sequence[_Group], work: float, former: Found | None) -> Found:
    """One ground; where it has no way, the former ones count: one that was not decided leaves all undecided."""
    cp = import_module("ortools.sat.python.cp_model")
    model = cp.CpModel()
    for number, group in enumerate(groups):
        for row in group.rows:
            group.variables[row] = model.new_int_var(0, group.most[row], f"{number}/{row}")
        model.add(sum(group.variables.values()) == len(group.tasks))
    _keep_within_nodes(snapshot, model, groups)
    for group in groups:
        for bound in () if group.tasks[0].rules is None else group.tasks[0].rules.bounds:
            _keep_apart(snapshot, model, group, groups, bound)
    solver = cp.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_deterministic_time = work
    solver.parameters.max_time_in_seconds = SECONDS
    status = solver.solve(model)
    if status in (cp.OPTIMAL, cp.FEASIBLE):
        taken = [{row: solver.value(each) for row, each in group.variables.items()} for group in groups]
        return Found(Search.FOUND, tuple(tuple((row, count) for row, count in each.items() if count) for each in taken))
    is_proved = status == cp.INFEASIBLE and (former is None or former.search is Search.IMPOSSIBLE)
    return Found(Search.IMPOSSIBLE if is_proved else Search.UNDECIDED)


def _measure(
    snapshot: Snapshot, tasks: tuple[QueuedTask, ...], candidates: Candidates, kept: frozenset[int], ground: Ground
) -> _Group:
    closed = kept | ground.closed_to(tasks[0].rules)
    scores = candidates.scores
    counts = np.minimum(count_fitting(RowView(snapshot, candidates.fits, slice(0, len(scores)))), len(tasks))
    counts[list(closed)] = 0
    apart = find_apart(snapshot, tasks[0].kin, tasks[0].rules, candidates, closed)
    if apart is not None and apart.is_by_count:
        for barred in apart.barred().values():
            counts[barred] = 0
    rows = np.flatnonzero(counts)
    rows = rows[np.lexsort((snapshot.columns.tie[rows], scores[rows]))][:MAX_ROWS]
    return _Group(tasks, candidates, closed, rows.tolist(), {row: int(counts[row]) for row in rows.tolist()})


def _keep_within_nodes(snapshot: Snapshot, model: Any, groups: Sequence[_Group]) -> None:
    """On each node the groups together take no more CPU, memory and devices than are free."""
    columns = snapshot.columns
    sharing: defaultdict[int, list[_Group]] = defaultdict(list)
    for group in groups:
        for row in group.rows:
            sharing[row].append(group)
    for row, here in sharing.items():
        if len(here) == 1:
            continue  # its own most says it all
        requests = [(group.candidates.request, group.variables[row]) for group in here]
        model.add(sum(request.cpu_milli * each for request, each in requests) <= int(columns.cpu_free[row]))
        model.add(sum(request.memory_mib * each for request, each in requests) <= int(columns.memory_free[row]))
        devices = [
            (_slots(snapshot, group.candidates, row), demand.count, each)
            for group, (request, each) in zip(here, requests, strict=True)
            if (demand := request.devices) is not None
        ]
        # Whatever groups are put together, they find enough devices among those that any of them could use.
        for size in range(2, len(devices) + 1):
            for some in combinations(devices, size):
                usable = frozenset().union(*(slots for slots, _, _ in some))
                model.add(sum(count * each for _, count, each in some) <= len(usable))


def _slots(snapshot: Snapshot, candidates: Candidates, row: int) -> frozenset[int]:
    view = RowView(snapshot, candidates.fits, np.array([row]))
    return frozenset(np.flatnonzero(view.admissible[0]).tolist())


def _keep_apart(snapshot: Snapshot, model: Any, group: _Group, groups: Sequence[_Group], bound: Bound) -> None:
    """The tasks of a group keep a bound, with those of the gang that it counts and those that stand there already."""
    task, tenant = group.tasks[0], group.candidates.request.tenant
    selector = selector_of(tenant, task.kin, bound)
    counted = [each for each in groups if selector.matches_kin(tenant, each.tasks[0].kin)]
    if not counted:
        return  # only others count, whose domains are closed already
    domains = snapshot.domains_of(bound.level, np.arange(snapshot.columns.rows))
    before: defaultdict[int, int] = defaultdict(int)
    for node, tasks in snapshot.neighbours.count(selector).items():
        row = snapshot.find_row(node)
        if row is not None:
            before[int(domains[row])] += tasks
    own: defaultdict[int, list[Any]] = defaultdict(list)
    together: defaultdict[int, list[Any]] = defaultdict(list)
    for each in counted:
        for row, variable in each.variables.items():
            together[int(domains[row])].append(variable)
    for row, variable in group.variables.items():
        own[int(domains[row])].append(variable)
    fewest = None
    if bound.skew is not None:
        fewest = model.new_int_var(0, len(group.tasks) + max(before.values(), default=0), "fewest")
        usable = group.candidates.view_empty()[1]
        usable = usable[~np.isin(usable, list(group.closed))]
        for domain in {int(each) for each in domains[usable]} - {ABSENT}:
            model.add(fewest <= before[domain] + sum(together[domain]))
    for domain, variables in own.items():
        is_used = model.new_bool_var(f"used/{bound.level}/{domain}")
        model.add(sum(variables) <= len(group.tasks) * is_used)
        most = bound.most if fewest is None else fewest + (bound.skew or 0)
        model.add(before[domain] + sum(together[domain]) <= most).only_enforce_if(is_used)
