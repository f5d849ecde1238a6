"""The kernels in machine code. Importing this imports numba, which costs memory and a second: only where it pays.

Each function is compiled from the very lines that NumPy's answers are tested against. Nothing is kept on disk
(decision 124).
"""

import zlib
from collections.abc import Callable
from functools import cache, partial
from types import FunctionType, ModuleType
from typing import Any

import numba

from millpond_contracts.ids import NodeId, PoolId, TenantId
from millpond_scheduler.domain import blocks, kernels
from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.nodes import NodeRecord
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.scoring import Kernels
from millpond_scheduler.domain.snapshot import Snapshot


@cache
def compile_kernels() -> Kernels:
    """The kernels, ready to be called; the first call takes seconds."""
    rows, best = _compile(kernels), _compile(blocks)
    compiled = Kernels(rows["refresh_rows"], best["note_rows"], best["find_first"])
    # They are compiled for the types of their arguments, at their first call.
    snapshot, pool = Snapshot(), PoolId(int=1)
    snapshot.upsert_node(NodeRecord(NodeId(int=1), pool, 0, 0))
    Candidates(snapshot, RequestClass(TenantId(int=1), pool, 0, 0), functions=compiled).find_best()
    return compiled


def _compile(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """A module's functions, each of which calls the compiled ones."""
    names = dict(vars(module))
    constants = {name: value for name, value in names.items() if isinstance(value, int | tuple)}
    # numba compiles anew when the file changes, and knows nothing of numbers that come from other files.
    version = zlib.crc32(repr(sorted(constants.items())).encode())
    functions = [one for one in names.values() if isinstance(one, FunctionType) and one.__module__ == module.__name__]
    for function in functions:
        copied = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
        copied.__module__, copied.__qualname__ = module.__name__, f"{function.__name__}_{version:08x}"
        names[function.__name__] = _compile_function(copied)
    return names


def _compile_function(function: FunctionType) -> Callable[..., Any]:
    try:
        return _compile_with(function, cache=True)
    except RuntimeError:  # no folder to keep machine code in: neither beside the source nor in the user's own
        return _compile_with(function)


_compile_with: Callable[..., Callable[..., Any]] = partial(numba.njit, nogil=True, error_model="numpy", _nrt=False)
