"""An independent judge of a quiet stack: plain SQL as the database's owner, the API's answers, and the agent's journal.

It imports no code of a service. What the services say about themselves is compared with what follows from the rows
of another service, from the journal that the agent wrote on its machine, and from what the client was promised.
"""

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import asyncpg

from tests.system.checker_bill import check_bill
from tests.system.checker_delivery import SCHEMAS, check_delivery, find_backlog
from tests.system.client import Caller, History, Outcome
from tests.system.stack import Stack

WHOLE_DEVICE_MILLI = 1000
# By how much the server's reading of the machine's clock may differ from the machine's own.
_CLOCK_TOLERANCE_SECONDS = 1.0
_FAR = datetime(9999, 1, 1, tzinfo=UTC)


class Fault(StrEnum):
    """What a finding says went wrong."""

    LOST = "lost"
    DOUBLED = "doubled"
    OVERALLOCATED = "overallocated"
    BILL = "statement_mismatches"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it must be."""

    fault: Fault
    text: str


@dataclass(slots=True)
class Facts:
    """What a quiet database holds, and the findings against it.

    Attributes:
        allocations: The newest body of each allocation by its text id, as the scheduler's outbox tells it.
        parked: Events that were made so that no consumer can apply them, as (publisher, seq).
    """

    connection: asyncpg.Connection
    history: History
    operator: Caller
    journal: list[dict[str, Any]]
    parked: frozenset[tuple[str, int]] = frozenset()
    allocations: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def expect(self, condition: bool, text: str, fault: Fault = Fault.LOST) -> None:
        """Keeps a finding unless the condition holds."""
        if not condition:
            self.findings.append(Finding(fault, text))


async def assert_sound(stack: Stack, operator: Caller, history: History, *, quiet_seconds: float = 30.0) -> Facts:
    """Waits until nothing is on its way and fails with every finding."""
    facts = await judge(stack, operator, history, quiet_seconds=quiet_seconds)
    assert not facts.findings, "\n".join(f"{one.fault}: {one.text}" for one in facts.findings)
    return facts


async def judge(
    stack: Stack,
    operator: Caller,
    history: History,
    *,
    quiet_seconds: float = 30.0,
    agent_folders: Sequence[Path] = (),
    parked: frozenset[tuple[str, int]] = frozenset(),
    ended: Collection[str] = frozenset(),
) -> Facts:
    """Waits until nothing is on its way and tells all that is found; what never becomes quiet is lost.

    Args:
        agent_folders: State of further agents, such as of a process of simulated nodes; their journals count too.
        parked: Events that must have been parked, as (publisher, seq); any other must not.
        ended: Consumers that nobody waits for, as `find_backlog` says.
    """
    connection = await asyncpg.connect(stack.owner_url)
    try:
        await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        waiting = await _wait_until_quiet(connection, history, quiet_seconds, ended)
        journal = [line for folder in (stack.agent_folder, *agent_folders) for line in read_journal(folder)]
        facts = Facts(connection, history, operator, journal, parked)
        facts.findings += [Finding(Fault.LOST, f"not quiet: {text}") for text in waiting]
        facts.allocations = await _read_allocations(connection)
        for check in CHECKS:
            await check(facts)
        facts.findings += [Finding(Fault.LOST, text) for text in await check_delivery(connection, parked)]
        bill = await check_bill(connection, operator, facts.allocations)
        facts.findings += [Finding(Fault.BILL, text) for text in bill]
        return facts
    finally:
        await connection.close()


async def _wait_until_quiet(
    connection: asyncpg.Connection, history: History, seconds: float, ended: Collection[str]
) -> list[str]:
    """What is on its way still when time is up."""
    deadline = time.monotonic() + seconds
    while True:
        waiting = await find_backlog(connection, ended)
        waiting += [
            f"job {row['name']} is {row['state']}"
            for row in await connection.fetch(
                "SELECT name, state FROM scheduler.job WHERE state IN ('pending', 'running') AND name = ANY($1)",
                [one.name for one in history.submissions],
            )
        ]
        if not waiting or time.monotonic() > deadline:
            return waiting
        await asyncio.sleep(0.2)


async def _read_allocations(connection: asyncpg.Connection) -> dict[str, dict[str, Any]]:
    rows = await connection.fetch(
        "SELECT subject, body FROM scheduler.outbox WHERE type LIKE 'scheduler.allocation_%' ORDER BY generation"
    )
    return {row["subject"]: row["body"]["allocation"] for row in rows}


def read_journal(agent_folder: Path) -> list[dict[str, Any]]:
    """Every line of the journals below a folder: of an agent, or of each node of a process of simulated ones."""
    parts = sorted(agent_folder.rglob("spool/journal*.jsonl"), key=lambda path: (path.parent, _part(path)))
    return [json.loads(line) for path in parts for line in path.read_text(encoding="utf-8").splitlines()]


def _part(path: Path) -> float:
    """Older parts of a journal carry a number; the one that is written to has none."""
    number = path.name.split(".")[1]
    return int(number) if number.isdigit() else float("inf")


async def check_operations(facts: Facts) -> None:
    """What was acknowledged left its audit row, once; what was refused left none; anything else at most one."""
    ours = {one.request_id: one for one in facts.history.operations}
    rows: Counter[tuple[str, str]] = Counter()
    objects: dict[tuple[str, str], str] = {}
    for schema in SCHEMAS:
        query = f"SELECT request_id, action, object FROM {schema}.audit WHERE request_id = ANY($1)"
        for row in await facts.connection.fetch(query, list(ours)):
            rows[row["request_id"], row["action"]] += 1
            objects[row["request_id"], row["action"]] = row["object"]
    for one in ours.values():
        key = (one.request_id, one.action)
        least = one.at_least if one.outcome is Outcome.OK else 0
        most = 0 if one.outcome is Outcome.FAIL else 1
        told = f"{one.action} {one.name} ({one.outcome}, {one.attempts} attempts): {rows[key]} audit rows"
        facts.expect(rows[key] >= least, told)
        facts.expect(rows[key] <= most, told, Fault.DOUBLED)
        is_same = one.acknowledged is None or rows[key] == 0 or objects[key] == one.acknowledged
        facts.expect(is_same, f"{told}, of {objects.get(key)} and not {one.acknowledged}")


async def check_jobs(facts: Facts) -> None:
    """Every acknowledged job exists once and has ended with its tasks; any other exists at most once."""
    rows = await facts.connection.fetch(
        "SELECT j.name, j.state, count(*) AS tasks, count(*) FILTER (WHERE t.state IN ('pending', 'bound', 'starting',"
        " 'running', 'stopping')) AS open, count(*) FILTER (WHERE t.state = 'succeeded') AS succeeded"
        " FROM scheduler.job j JOIN scheduler.task t ON t.job_id = j.id GROUP BY j.id"
    )
    by_name: dict[str, list[asyncpg.Record]] = defaultdict(list)
    for row in rows:
        by_name[row["name"]].append(row)
    submitted = await facts.connection.fetch(
        "SELECT subject, body->'job'->>'name' AS name FROM scheduler.outbox WHERE type = 'scheduler.job_submitted.v1'"
    )
    names = {row["subject"]: row["name"] for row in submitted}
    for one in facts.history.submissions:
        found = by_name[one.name]
        told = f"job {one.name} ({one.outcome}): {len(found)} rows"
        facts.expect(len(found) >= (one.outcome is Outcome.OK), told)
        facts.expect(len(found) <= (one.outcome is not Outcome.FAIL), told, Fault.DOUBLED)
        if one.acknowledged:
            facts.expect(names.get(one.acknowledged) == one.name, f"job {one.acknowledged} was lost")
        for row in found:
            facts.expect(row["state"] in ("succeeded", "failed", "cancelled"), f"job {one.name} is {row['state']}")
            facts.expect(row["open"] == 0, f"job {one.name} has {row['open']} open tasks")
            is_whole = (row["state"] == "succeeded") == (row["succeeded"] == row["tasks"])
            facts.expect(is_whole, f"job {one.name} is {row['state']}, {row['succeeded']} of {row['tasks']} succeeded")


async def check_devices(facts: Facts) -> None:
    """No device is ever given away beyond its whole, and no node beyond its inventory."""
    rows = await facts.connection.fetch(
        "SELECT node_id, devices, cpu_milli, memory_mib, bound_at, coalesce(released_at, $1) AS until"
        " FROM scheduler.allocation",
        _FAR,
    )
    totals = await facts.connection.fetch(
        "SELECT node_id, total_cpu_milli, total_memory_mib, free_cpu_milli, free_memory_mib FROM scheduler.node_guard"
    )
    spans: dict[tuple[str, str], list[tuple[datetime, datetime, int]]] = defaultdict(list)
    for row in rows:
        since, until, node = row["bound_at"], row["until"], str(row["node_id"])
        spans["cpu", node].append((since, until, row["cpu_milli"]))
        spans["memory", node].append((since, until, row["memory_mib"]))
        for share in row["devices"]:
            spans["device", share["device_id"]].append((since, until, share["milli"]))
    bounds = {("cpu", str(row["node_id"])): row["total_cpu_milli"] for row in totals}
    bounds |= {("memory", str(row["node_id"])): row["total_memory_mib"] for row in totals}
    for key, held in spans.items():
        bound = WHOLE_DEVICE_MILLI if key[0] == "device" else bounds.get(key, 0)
        peak = highest_sum(held)
        facts.expect(peak <= bound, f"{key}: {peak} held at once, there are {bound}", Fault.OVERALLOCATED)
    for row in totals:
        node = str(row["node_id"])
        live = {name: sum(x for _, end, x in spans[name, node] if end == _FAR) for name in ("cpu", "memory")}
        is_exact = (row["free_cpu_milli"], row["free_memory_mib"]) == (
            row["total_cpu_milli"] - live["cpu"],
            row["total_memory_mib"] - live["memory"],
        )
        facts.expect(is_exact, f"node {node}: counters {dict(row)}, live {live}", Fault.OVERALLOCATED)


def highest_sum(spans: Iterable[tuple[datetime, datetime, int]]) -> int:
    """The most that is held at one instant; what ends at an instant is free for what begins there."""
    steps = sorted(
        [(since, 1, amount) for since, _, amount in spans] + [(until, 0, -amount) for _, until, amount in spans]
    )
    level = peak = 0
    for _, _, change in steps:
        level += change
        peak = max(peak, level)
    return peak


async def check_usage(facts: Facts) -> None:
    """The counters of each virtual pool equal the sum of its live allocations."""
    live = await facts.connection.fetch("SELECT * FROM scheduler.allocation WHERE state <> 'released'")
    held: dict[tuple[str, str, str], int] = defaultdict(int)
    for row in live:
        pool = str(row["virtual_pool_id"])
        held[pool, "cpu", ""] += row["cpu_milli"]
        held[pool, "memory", ""] += row["memory_mib"]
        for share in row["devices"]:
            held[pool, "device", share["flavor"]] += share["milli"]
    rows = await facts.connection.fetch("SELECT virtual_pool_id, resource, flavor, used, hard FROM scheduler.usage")
    for row in rows:
        expected = held.pop((str(row["virtual_pool_id"]), row["resource"], row["flavor"]), 0)
        told = f"usage {dict(row)}: live allocations hold {expected}"
        facts.expect(row["used"] == expected, told, Fault.OVERALLOCATED)
    uncounted = {key: amount for key, amount in held.items() if amount}
    facts.expect(not uncounted, f"live allocations without a counter: {uncounted}", Fault.OVERALLOCATED)
    drift = await facts.connection.fetch(
        "SELECT body FROM scheduler.outbox WHERE type = 'scheduler.usage_drift_found.v1'"
    )
    facts.expect(not drift, f"counters had drifted: {[row['body'] for row in drift]}", Fault.OVERALLOCATED)


async def check_limits(facts: Facts) -> None:
    """No virtual pool ever held more at once than the highest of its hard limits."""
    told = await facts.connection.fetch(
        "SELECT subject, body->'virtual_pool'->'limits' AS limits FROM quota.outbox"
        " WHERE type = 'quota.virtual_pool_changed.v1'"
    )
    hard: dict[tuple[str, str, str], int] = defaultdict(int)
    for row in told:
        named = {("cpu", ""): row["limits"]["cpu"], ("memory", ""): row["limits"]["memory"]}
        named |= {("device", flavor): limit for flavor, limit in row["limits"]["devices"].items()}
        for (resource, flavor), limit in named.items():
            most = limit["guaranteed"] + limit["borrow"] if limit["hard"] is None else limit["hard"]
            key = (row["subject"], resource, flavor)
            hard[key] = max(hard[key], most)
    spans: dict[tuple[str, str, str], list[tuple[datetime, datetime, int]]] = defaultdict(list)
    for body in facts.allocations.values():
        since, until = _instant(body["bound_at"]), _instant(body["released_at"]) if body["released_at"] else _FAR
        pool = body["virtual_pool_id"]
        spans[pool, "cpu", ""].append((since, until, body["cpu_milli"]))
        spans[pool, "memory", ""].append((since, until, body["memory_mib"]))
        for share in body["devices"]:
            spans[pool, "device", share["flavor"]].append((since, until, share["milli"]))
    for key, held in spans.items():
        peak = highest_sum(held)
        facts.expect(peak <= hard[key], f"{key}: {peak} held at once, at most {hard[key]} allowed", Fault.OVERALLOCATED)


async def check_attempts(facts: Facts) -> None:
    """No task is ever held or run by two attempts at once, by the scheduler's rows and by the agent's journal."""
    rows = await facts.connection.fetch(
        "SELECT task_id, attempt, bound_at, coalesce(released_at, $1) AS until FROM scheduler.allocation", _FAR
    )
    spans = [(str(row["task_id"]), row["bound_at"], row["until"], f"attempt {row['attempt']}") for row in rows]
    facts.findings += [Finding(Fault.DOUBLED, f"held twice: {text}") for text in overlaps(spans)]
    numbers = [(row["task_id"], row["attempt"]) for row in rows]
    facts.expect(len(numbers) == len(set(numbers)), "an attempt of a task has two allocations", Fault.DOUBLED)
    told = sorted((body["bound_at"], body["released_at"] or "") for body in facts.allocations.values())
    kept = sorted((_text(row["bound_at"]), "" if row["until"] == _FAR else _text(row["until"])) for row in rows)
    facts.expect([_plain(pair) for pair in told] == [_plain(pair) for pair in kept], "events and allocations differ")


async def check_journal(facts: Facts) -> None:
    """The machine's own record agrees: one start per allocation, no task twice at a time, the billed time."""
    lines: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for line in facts.journal:
        known = lines[line["allocation_id"]].setdefault(line["kind"], line)
        is_repeat = known["monotonic_ms"] == line["monotonic_ms"]
        facts.expect(is_repeat, f"two different {line['kind']} lines of {line['allocation_id']}")
    runs = [
        (kinds["start"]["task_id"], kinds["start"]["monotonic_ms"], kinds["empty"]["monotonic_ms"], allocation)
        for allocation, kinds in lines.items()
        if "start" in kinds and "empty" in kinds
    ]
    facts.findings += [Finding(Fault.DOUBLED, f"ran twice at a time: {text}") for text in overlaps(runs)]
    for allocation, body in facts.allocations.items():
        kinds = lines.get(allocation, {})
        if body["active_at"] is None:
            continue
        facts.expect("active" in kinds, f"{allocation} is billed, and the journal knows no start")
        if "active" in kinds and "empty" in kinds and body["reason"] != "node_lost":
            ran = (kinds["empty"]["monotonic_ms"] - kinds["active"]["monotonic_ms"]) / 1000
            billed = (_instant(body["released_at"]) - _instant(body["active_at"])).total_seconds()
            is_close = abs(ran - billed) <= _CLOCK_TOLERANCE_SECONDS
            facts.expect(is_close, f"{allocation} ran {ran:.3f} s and is billed {billed:.3f} s", Fault.BILL)


def overlaps(spans: Iterable[tuple[str, Any, Any, str]]) -> Iterator[str]:
    """Pairs of one key, given as (key, since, until, name), that share an instant."""
    by_key: dict[str, list[tuple[Any, Any, str]]] = defaultdict(list)
    for key, since, until, name in spans:
        by_key[key].append((since, until, name))
    for key, found in by_key.items():
        latest = None
        for since, until, name in sorted(found):
            if latest is not None and since < latest[0]:
                yield f"{key}: {name} began at {since}, {latest[1]} ended at {latest[0]}"
            if latest is None or until > latest[0]:
                latest = (until, name)


def check_witnesses(folder: Path, jobs: Mapping[str, str]) -> list[str]:
    """What the tasks themselves wrote: a succeeded job ran whole, no run began before an earlier one had ended.

    Args:
        folder: Holds `<job name>.<pid>`: a line `start <ns>`, and a line `end <ns>` when it came to its end.
        jobs: Job name -> its state.
    """
    findings = []
    runs: dict[str, list[dict[str, int]]] = defaultdict(list)
    for file in folder.iterdir():
        lines = dict(line.split() for line in file.read_text(encoding="utf-8").splitlines())
        runs[file.name.rpartition(".")[0]].append({kind: int(instant) for kind, instant in lines.items()})
    for name, state in jobs.items():
        mine = sorted(runs[name], key=lambda run: run.get("start", 0))
        whole = [run for run in mine if "end" in run]
        if state == "succeeded" and len(whole) != 1:
            findings.append(f"job {name} succeeded and came to its end {len(whole)} times")
        spans = [(name, run["start"], run["end"], "a whole run") for run in whole]
        findings += [f"ran twice at a time: {text}" for text in overlaps(spans)]
    return findings


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _text(moment: datetime) -> str:
    return moment.isoformat()


def _plain(pair: tuple[str, str]) -> tuple[datetime, datetime]:
    return _instant(pair[0]), _instant(pair[1]) if pair[1] else _FAR


CHECKS: tuple[Callable[[Facts], Awaitable[None]], ...] = (
    check_operations,
    check_jobs,
    check_devices,
    check_usage,
    check_limits,
    check_attempts,
    check_journal,
)
