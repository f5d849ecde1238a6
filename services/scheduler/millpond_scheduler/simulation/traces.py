"""Lists of nodes and jobs as CSV files: read, checked, and made into values.

A column may go by the names that public traces give it, in their units; `NODE_COLUMNS` and `JOB_COLUMNS` are the whole
list. What a list does not say is the default; columns that nobody asks for are ignored.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from millpond_contracts.quantities import MAX_COUNT, MAX_CPU_MILLI, MAX_MEMORY_MIB, WHOLE_DEVICE_MILLI

_MAX_SECONDS = 10**10


class TraceError(ValueError):
    """A file that cannot be used; the text names the file, the line and what was expected."""


@dataclass(frozen=True, slots=True)
class Column:
    """Where a number is found: names of columns, each with what one of its units is in ours; None = must be there."""

    names: Mapping[str, int]
    default: int | None
    largest: int


NODE_COLUMNS = {
    "cpu_milli": Column({"cpu_milli": 1, "cpu": 1000, "cpu_num": 1000}, None, MAX_CPU_MILLI),
    "memory_mib": Column({"memory_mib": 1, "mem_gib": 1024}, None, MAX_MEMORY_MIB),
    "devices": Column({"gpu": 1, "num_gpu": 1, "gpus": 1, "gpu_capacity_num": 1}, None, 64),
}
JOB_COLUMNS = {
    "cpu_milli": Column({"cpu_milli": 1, "cpu": 1000}, 0, MAX_CPU_MILLI),
    "memory_mib": Column({"memory_mib": 1, "mem_gib": 1024}, 0, MAX_MEMORY_MIB),
    "devices": Column({"num_gpu": 1, "gpus": 1, "gpu": 1}, None, MAX_COUNT),
    "milli": Column({"gpu_milli": 1}, WHOLE_DEVICE_MILLI, WHOLE_DEVICE_MILLI),
    "tasks": Column({"tasks": 1}, 1, MAX_COUNT),
}
SUBMIT_COLUMNS = ("submit_s", "creation_s", "creation_time")
END_COLUMNS = ("deletion_s", "deletion_time")
DURATION_COLUMN = "duration_s"
LIMIT_COLUMN = "time_limit_s"


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One node: what it has, and the model of its devices, empty without devices."""

    name: str
    cpu_milli: int
    memory_mib: int
    devices: int
    model: str


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a list: so many devices with `milli` of each, of one of the models (none = any).

    `submit_s` and `duration_s` are seconds from the trace's beginning; None = the list does not say. `time_limit_s` is
    the longest that it may run, None = for ever. `tasks` of several = a gang of so many equal ones, which start
    together and divide what the job asks for.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    devices: int
    milli: int
    models: frozenset[str] = frozenset()
    submit_s: int | None = None
    duration_s: int | None = None
    time_limit_s: int | None = None
    tasks: int = 1

    @property
    def device_milli(self) -> int:
        """Milli of all its devices together."""
        return self.devices * self.milli


def read_nodes(path: Path) -> list[TraceNode]:
    """The nodes of a list that have devices; nodes without are left out.

    Raises:
        TraceError: it cannot be read, or a value is missing or out of range.
    """
    nodes, names = [], set()
    for row in _rows(path, NODE_COLUMNS):
        numbers = {name: row.number(column) for name, column in NODE_COLUMNS.items()}
        name = row.text("sn") or row.text("name") or f"node-{row.index}"
        copies = row.number(Column({"nodes": 1}, 1, 10**6))
        model = row.text("model") or row.text("gpu_model")
        if numbers["devices"] and not model:
            raise row.error("a node with devices needs a model")
        for copy in range(copies):
            named = name if copies == 1 else f"{name}-{copy}"
            if named in names:
                raise row.error(f"there are two nodes {named!r}")
            names.add(named)
            if numbers["devices"]:
                nodes.append(TraceNode(name=named, model=model, **numbers))
    if not nodes:
        raise TraceError(f"{path}: no node has devices")
    return nodes


def read_jobs(path: Path, nodes: list[TraceNode]) -> list[TraceJob]:
    """The jobs of a list in its order.

    Raises:
        TraceError: it cannot be read, a value is missing or out of range, or a model is of none of the nodes.
    """
    models = {node.model for node in nodes}
    jobs = [_read_job(row, models) for row in _rows(path, JOB_COLUMNS)]
    if not jobs:
        raise TraceError(f"{path}: there is no job in it")
    return jobs


class _Row:
    """One line of a file under its columns' names."""

    def __init__(self, path: Path, index: int, values: Mapping[str, str | None]) -> None:
        self.index = index
        self._path = path
        self._values = values

    def text(self, name: str) -> str:
        """What stands in a column, empty when nothing does."""
        return (self._values.get(name) or "").strip()

    def number(self, column: Column) -> int:
        """A whole number in our unit."""
        for name, factor in column.names.items():
            text = self.text(name)
            if text:
                return self.whole(name, text, column.largest // factor) * factor
        if column.default is None:
            raise self.error(f"nothing stands in {' or '.join(column.names)}")
        return column.default

    def seconds(self, *names: str) -> int | None:
        """The first instant or duration that the columns tell."""
        found = next(((name, self.text(name)) for name in names if self.text(name)), None)
        return None if found is None else self.whole(*found, _MAX_SECONDS)

    def whole(self, name: str, text: str, largest: int) -> int:
        """The text of a column as a whole number from 0 to the largest."""
        if not text.isascii() or not text.isdigit() or int(text) > largest:
            raise self.error(f"expected a whole number from 0 to {largest} in {name}, found {text[:40]!r}")
        return int(text)

    def error(self, what: str) -> TraceError:
        """The error that names this line."""
        return TraceError(f"{self._path}, line {self.index + 2}: {what}")


def _rows(path: Path, needed: Mapping[str, Column]) -> Iterator[_Row]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            header = set(reader.fieldnames or ())
            for column in needed.values():
                if column.default is None and not header & set(column.names):
                    raise TraceError(f"{path}: there is no column {' or '.join(column.names)}")
            for index, values in enumerate(reader):
                yield _Row(path, index, values)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path} cannot be read: {error}") from error


def _read_job(row: _Row, models: set[str]) -> TraceJob:
    numbers = {name: row.number(column) for name, column in JOB_COLUMNS.items()}
    if not numbers["devices"]:
        numbers["milli"] = 0
    elif not numbers["milli"]:
        raise row.error("expected at least 1 in gpu_milli of a job with devices")
    elif numbers["devices"] > 1 and numbers["milli"] != WHOLE_DEVICE_MILLI:
        raise row.error("only a job with one device may ask for a part of it")
    if not numbers["tasks"] or any(numbers[name] % numbers["tasks"] for name in ("devices", "cpu_milli", "memory_mib")):
        raise row.error("expected at least 1 in tasks, and a number that divides the devices, CPU and memory")
    wanted = frozenset(filter(None, row.text("gpu_spec").split("|")))
    unknown = sorted(wanted - models)
    if unknown:
        raise row.error(f"no node has a {', '.join(unknown)}; there are {', '.join(sorted(models))}")
    submit, end, duration = row.seconds(*SUBMIT_COLUMNS), row.seconds(*END_COLUMNS), row.seconds(DURATION_COLUMN)
    if duration is None and submit is not None and end is not None:
        duration = max(end - submit, 0)
    name, limit = row.text("name") or str(row.index), row.seconds(LIMIT_COLUMN)
    return TraceJob(name=name, models=wanted, submit_s=submit, duration_s=duration, time_limit_s=limit, **numbers)
