"""The kernels in machine code. Importing this imports numba, which costs memory and a second: only where it pays.

Each function is compiled from the very lines that NumPy's answers are tested against. The machine code is kept beside
them, as bytecode is (decision 124).
"""

import inspect
import zlib
from collections.abc import Callable
from functools import cache, partial
from types import FunctionType, ModuleType
from typing import Any

import numba

from millpond_contracts.ids import NodeId, PoolId, TenantId
from millpond_scheduler.domain import blocks, kernel_filters, kernel_ranks, kernels
from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.nodes import NodeRecord
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.scoring import Kernel
from millpond_scheduler.domain.snapshot import Snapshot


@cache
def compile_kernel() -> Kernel:
    """The kernel, ready to be called; the first call takes seconds."""
    compiled = _compile(kernel_filters, kernel_ranks, blocks, kernels)["refresh"]
    # It is compiled for the types of its arguments, at its first call.
    snapshot, pool = Snapshot(), PoolId(int=1)
    snapshot.upsert_node(NodeRecord(NodeId(int=1), pool, 0, 0))
    Candidates(snapshot, RequestClass(TenantId(int=1), pool, 0, 0), kernel=compiled).find_best()
    return compiled


def _compile(*modules: ModuleType) -> dict[str, Callable[..., Any]]:
    """The functions of modules, each of which calls the compiled ones of its own and of earlier modules."""
    compiled: dict[str, Callable[..., Any]] = {}
    version = 0
    for module in modules:
        names = vars(module) | compiled
        constants = {name: value for name, value in names.items() if isinstance(value, int | tuple)}
        # numba compiles anew when the file changes, and knows nothing of numbers and functions of other files.
        version = zlib.crc32(f"{sorted(constants.items())!r} {inspect.getsource(module)}".encode(), version)
        for function in vars(module).values():
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                copied = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
                copied.__module__, copied.__qualname__ = module.__name__, f"{function.__name__}_{version:08x}"
                compiled[function.__name__] = names[function.__name__] = _compile_function(copied)
    return compiled


def _compile_function(function: FunctionType) -> Callable[..., Any]:
    try:
        return _compile_with(function, cache=True)
    except RuntimeError:  # no folder to keep machine code in: neither beside the source nor in the user's own
        return _compile_with(function)


_compile_with: Callable[..., Callable[..., Any]] = partial(numba.njit, nogil=True, error_model="numpy", _nrt=False)
