"""Whether a simulation's allocations can be true, judged from its three files alone; imports none of our code.

`python -m tests.reference.placements NODES JOBS ALLOCATIONS REPORT` prints each finding, and ends with 1 if any is.
Every arrival is played again: nothing may be overfilled, a job is placed where it may run or fits nowhere, the arrivals
are what the openb protocol says, and the ratios of the report are computed anew.
"""

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

WHOLE = 1000
LOADS = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 100, 110, 120, 130)
TOLERANCE = 0.0002

Row = dict[str, str]


@dataclass
class Node:
    """What is left of a node."""

    cpu: int
    memory: int
    devices: list[int]
    model: str

    def holds(self, job: Row) -> bool:
        """Whether the job fits there now."""
        allowed = [model for model in (job.get("gpu_spec") or "").split("|") if model]
        if int(job["cpu_milli"]) > self.cpu or int(job["memory_mib"]) > self.memory:
            return False
        if int(job["num_gpu"]) and allowed and self.model not in allowed:
            return False
        return sum(free >= int(job["gpu_milli"]) for free in self.devices) >= int(job["num_gpu"])


def find_faults(nodes: Path, jobs: Path, allocations: Path, report: Path) -> list[str]:
    """Everything that cannot be true, in words; empty when all is well."""
    fleet, listed = _read(nodes), _read(jobs)
    told = {each["seed"]: each for each in json.loads(report.read_text(encoding="utf-8"))["seeds"]}
    faults: list[str] = []
    seen = []
    for seed, rows in groupby(_read(allocations), key=lambda row: int(row["seed"])):
        seen.append(seed)
        replay = _Replay(fleet, listed, list(rows))
        faults += [f"seed {seed}: {fault}" for fault in (*replay.run(), *replay.compare(told.get(seed, {})))]
    if seen != list(told):
        faults.append(f"the report has the seeds {list(told)}, the allocations {seen}")
    return faults


class _Replay:
    def __init__(self, fleet: Sequence[Row], listed: Sequence[Row], rows: Sequence[Row]) -> None:
        self._nodes = {
            row["sn"]: Node(int(row["cpu_milli"]), int(row["memory_mib"]), [WHOLE] * int(row["gpu"]), row["model"])
            for row in fleet
            if int(row["gpu"])
        }
        self._jobs = {row.get("name") or str(index): row for index, row in enumerate(listed)}
        self._rows = rows
        self._capacity = sum(len(node.devices) * WHOLE for node in self._nodes.values())
        self._arrived = self._allocated = 0
        self._curve: dict[int, float] = {}

    def run(self) -> Iterator[str]:
        draws: Counter[str] = Counter()
        for number, row in enumerate(self._rows):
            name, _, again = row["job"].partition("#")
            if int(row["arrival"]) != number:
                yield f"arrival {row['arrival']} stands in place {number}"
            if name not in self._jobs or again != (str(draws[name]) if draws[name] else ""):
                yield f"arrival {number}: {row['job']} is not the next draw of a job of the list"
                continue
            if number < len(self._jobs) and draws[name]:
                yield f"arrival {number}: {name} comes again before the whole list came"
            draws[name] += 1
            self._arrive(int(self._jobs[name]["num_gpu"]) * int(self._jobs[name]["gpu_milli"]))
            fault = self._place(row, self._jobs[name])
            if fault:
                yield f"arrival {number} ({row['job']}): {fault}"
        self._reach(LOADS[-1])
        most = max(int(job["num_gpu"]) * int(job["gpu_milli"]) for job in self._jobs.values())
        if not 0 <= self._capacity * 13 // 10 - self._arrived < most:
            yield f"{self._arrived} milli arrived, which is not the last before 130 % of {self._capacity}"

    def compare(self, told: dict[str, Any]) -> Iterator[str]:
        accepted = sum(row["accepted"] == "true" for row in self._rows)
        counts = {"arrivals": len(self._rows), "placed": accepted, "refused": len(self._rows) - accepted}
        for name, count in counts.items():
            if told.get(name) != count:
                yield f"the report tells {told.get(name)} {name}, there are {count}"
        idle = (self._capacity - self._allocated) / WHOLE
        if abs(told.get("unallocated_devices", -1) - idle) > TOLERANCE:
            yield f"the report tells {told.get('unallocated_devices')} idle devices, there are {idle}"
        for load, percent in self._curve.items():
            reported = told.get("allocation_percent", {}).get(str(load), -1)
            if abs(reported - percent) > TOLERANCE:
                yield f"at {load} % the report tells {reported} % allocated, it is {percent}"

    def _arrive(self, milli: int) -> None:
        self._arrived += milli
        for load in LOADS:
            if load not in self._curve and self._arrived * 100 > load * self._capacity:
                self._reach(load)

    def _reach(self, load: int) -> None:
        self._curve.setdefault(load, 100 * self._allocated / self._capacity)

    def _place(self, row: Row, job: Row) -> str | None:
        if row["milli"] != job["gpu_milli"]:
            return f"{row['milli']} milli, asked for {job['gpu_milli']}"
        if row["accepted"] != "true":
            if row["node"] or row["devices"]:
                return "refused, but on a node"
            roomy = next((name for name, node in self._nodes.items() if node.holds(job)), None)
            return None if roomy is None else f"refused, though {roomy} has room"
        node = self._nodes.get(row["node"])
        if node is None:
            return f"there is no node {row['node']} with devices"
        slots = [int(slot) for slot in row["devices"].split("|") if slot]
        if len(set(slots)) != int(job["num_gpu"]) or len(slots) != len(set(slots)):
            return f"devices {row['devices']}, asked for {job['num_gpu']}"
        if not node.holds(job) or any(slot >= len(node.devices) for slot in slots):
            return f"{row['node']} has no room for it"
        node.cpu -= int(job["cpu_milli"])
        node.memory -= int(job["memory_mib"])
        for slot in slots:
            node.devices[slot] -= int(job["gpu_milli"])
            if node.devices[slot] < 0:
                return f"device {slot} of {row['node']} is overfilled"
        self._allocated += len(slots) * int(job["gpu_milli"])
        return None


def _read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    found = find_faults(*(Path(argument) for argument in sys.argv[1:5]))
    print("\n".join(found) or "no fault")
    sys.exit(1 if found else 0)
