"""Shadow prices: what a core and a device more would be worth on each size of node, by a linear program.

The program packs what usually comes, as much of it as asks for all of the pool's devices, on nodes of each size put
together, in parts if need be, and finds how little of the pool's CPU would do if hardly any of it may be refused.
Its dual values say what is scarce then: a core where tasks of much CPU want to go, a device beside which CPU is plenty
or on which tasks insist. OR-Tools (decision 127) is loaded when it is first asked, for most pools never.

Source: duals of the fractional packing of the mix, with CPU cut until it binds; decision 164.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.fragmentation import DemandClass, DemandMix, Price
from millpond_scheduler.domain.nodes import NodeSize

REFUSED = 0.003
"""The share of the demand that may be refused; without any the last core would be worth all there is."""

_CORE_MILLI = 1000


@dataclass(slots=True)
class _Program:
    """Variables: how many tasks of each class run on each size; with their sums of devices, and per size of CPU too."""

    solver: Any
    served: list[tuple[Any, float]]
    cores: dict[NodeSize, list[tuple[Any, float]]]
    device_rows: dict[NodeSize, Any]


def find_shadow_prices(counts: Mapping[NodeSize, int], mix: DemandMix) -> dict[NodeSize, Price]:
    """The shadow prices of a pool's node sizes, in millionths of a device; empty where nothing can be packed.

    A device is priced above the cheapest one: what all cost alike decides nothing. Prices have two digits, so that one
    node more seldom changes them.

    Args:
        counts: how many nodes of each size the pool has.
        mix: what usually comes.
    """
    sizes = sorted((size for size, count in counts.items() if size.devices and count), key=str)
    classes = [each for each in mix.classes if any(_fits(each[0], size) for size in sizes)]
    if not classes:
        return {}
    most = _write(sizes, counts, classes)
    if not _solve(most, most.served, is_most=True):
        return {}
    wanted = most.solver.Objective().Value() * (1 - REFUSED)
    least = _write(sizes, counts, classes)
    cut = least.solver.NumVar(0, least.solver.infinity(), "")
    core_rows = {}
    for size in sizes:
        cores = counts[size] * size.cpu_milli / _CORE_MILLI
        core_rows[size] = _add_row(least.solver, [*least.cores[size], (cut, -cores)], upper=0)
    served = _add_row(least.solver, least.served, lower=wanted)
    if not _solve(least, [(cut, 1)], is_most=False) or not served.dual_value():
        return {}
    # What the objective pays for a device served is worth one.
    unit = 1_000_000 / served.dual_value()
    devices = {size: -row.dual_value() * unit for size, row in least.device_rows.items()}
    cheapest = min(devices.values())
    return {
        size: Price(_shorten(-core_rows[size].dual_value() * unit), _shorten(devices[size] - cheapest))
        for size in sizes
    }


def _shorten(price: float) -> int:
    return int(float(f"{max(price, 0):.1e}"))


def _fits(wanted: DemandClass, size: NodeSize) -> bool:
    return size.flavor in wanted.flavors and wanted.count <= size.devices and wanted.cpu_milli <= size.cpu_milli


def _write(
    sizes: Sequence[NodeSize], counts: Mapping[NodeSize, int], classes: Sequence[tuple[DemandClass, int]]
) -> _Program:
    solver = import_module("ortools.linear_solver.pywraplp").Solver.CreateSolver("GLOP")
    capacity = sum(counts[size] * size.devices for size in sizes)
    asked = sum(weight * wanted.count * wanted.milli for wanted, weight in classes)
    served: list[tuple[Any, float]] = []
    cores: dict[NodeSize, list[tuple[Any, float]]] = {size: [] for size in sizes}
    devices: dict[NodeSize, list[tuple[Any, float]]] = {size: [] for size in sizes}
    for wanted, weight in classes:
        tasks = [(size, solver.NumVar(0, solver.infinity(), "")) for size in sizes if _fits(wanted, size)]
        came = weight * capacity * WHOLE_DEVICE_MILLI / asked
        _add_row(solver, [(variable, 1) for _, variable in tasks], upper=came)
        for size, variable in tasks:
            term = (variable, wanted.count * wanted.milli / WHOLE_DEVICE_MILLI)
            served.append(term)
            devices[size].append(term)
            cores[size].append((variable, wanted.cpu_milli / _CORE_MILLI))
    rows = {size: _add_row(solver, devices[size], upper=counts[size] * size.devices) for size in sizes}
    return _Program(solver, served, cores, rows)


def _add_row(
    solver: Any, terms: Sequence[tuple[Any, float]], lower: float | None = None, upper: float | None = None
) -> Any:
    infinity = solver.infinity()
    row = solver.Constraint(-infinity if lower is None else lower, infinity if upper is None else upper)
    for variable, factor in terms:
        row.SetCoefficient(variable, factor)
    return row


def _solve(program: _Program, terms: Sequence[tuple[Any, float]], *, is_most: bool) -> bool:
    """Whether there is an optimum."""
    objective = program.solver.Objective()
    for variable, factor in terms:
        objective.SetCoefficient(variable, factor)
    if is_most:
        objective.SetMaximization()
    else:
        objective.SetMinimization()
    return bool(program.solver.Solve() == program.solver.OPTIMAL)
