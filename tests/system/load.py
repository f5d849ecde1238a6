"""Jobs for a stack under faults: a stream of short real processes, each leaving a witness of its own."""

import asyncio
import random
from dataclasses import dataclass, field

from tests.system.checker import check_witnesses
from tests.system.client import History, Tenant, job_body, job_of, submit
from tests.system.stack import Stack
from tests.waiting import eventually

# $0 = folder, $1 = name of the job, $2 = seconds. The lines say when it began and came to its end.
WITNESSED = 'f="$0/$1.$$"; echo "start $(date +%s%N)" > "$f"; sleep "$2"; echo "end $(date +%s%N)" >> "$f"'
_CPU_MILLI = 50


@dataclass(slots=True)
class Load:
    """Keeps a tenant's queue filled until it is told to stop.

    Attributes:
        name: Begins the names of its jobs; no other load of the stack has it.
        seconds: The shortest and the longest job.
        together: How many may run at once, by the tenant's limit.
    """

    name: str
    stack: Stack
    tenant: Tenant
    rng: random.Random
    seconds: tuple[float, float]
    together: int
    history: History = field(default_factory=History)

    def witnesses(self) -> tuple[int, int]:
        """How many runs have begun, and how many of them came to their end, by what the tasks wrote."""
        mine = [file for file in self.stack.witnesses.iterdir() if file.name.startswith(f"{self.name}-")]
        texts = [file.read_text(encoding="utf-8") for file in mine]
        return len(texts), sum("end" in text for text in texts)

    async def submit_one(self) -> None:
        """Submits the next job."""
        name = f"{self.name}-{len(self.history.submissions):03}"
        seconds = f"{self.rng.uniform(*self.seconds):.2f}"
        command = ("/bin/sh", "-c", WITNESSED, str(self.stack.witnesses), name, seconds)
        body = job_body(self.tenant.virtual_pool, name, command, cpu_milli=_CPU_MILLI, memory_mib=16)
        await submit(self.tenant, self.history, body, seconds=60)

    async def feed(self, at_least: int, enough: asyncio.Event) -> None:
        """Submits jobs until there are enough and `enough` is set, a full set of them always waiting."""
        while len(self.history.submissions) < at_least or not enough.is_set():
            _, ended = self.witnesses()
            if len(self.history.submissions) < ended + 2 * self.together:
                await self.submit_one()
            else:
                await asyncio.sleep(0.1)

    async def wait_until_running(
        self, count: int, seconds: float = 60.0, feeding: asyncio.Task[None] | None = None
    ) -> None:
        """Waits until so many tasks run, by their witnesses; a failure of the feeding ends the wait."""

        async def enough_run() -> bool:
            if feeding is not None and feeding.done():
                feeding.result()
            begun, ended = self.witnesses()
            return begun - ended >= count

        try:
            await eventually(enough_run, seconds)
        except AssertionError as error:
            jobs = f"{len(self.history.submissions)} submitted, (begun, ended) = {self.witnesses()}"
            raise AssertionError(f"{error}: {jobs}\n{self.stack.describe()}") from error

    async def wait_for_ends(self, seconds: float = 90.0) -> dict[str, str]:
        """Waits until every acknowledged job has ended; job name -> state."""
        states: dict[str, str] = {}
        waiting = {one.name: one.acknowledged for one in self.history.submissions if one.acknowledged}

        async def all_ended() -> bool:
            for name, job_id in list(waiting.items()):
                job = await job_of(self.tenant, job_id)
                if job["state"] not in ("succeeded", "failed", "cancelled"):
                    return False
                states[name] = job["state"]
                del waiting[name]
            return True

        try:
            await eventually(all_ended, seconds)
        except AssertionError:
            raise AssertionError(f"jobs do not end: {waiting}\n{self.stack.describe()}") from None
        return states

    def assert_witnessed(self, states: dict[str, str]) -> None:
        """The tasks themselves say that no job ran twice at a time and each success ran whole, once."""
        findings = check_witnesses(self.stack.witnesses, states)
        assert not findings, "\n".join(findings)


async def attempts_of(tenant: Tenant, job_id: str) -> int:
    """How often the job's only task was tried."""
    return int((await job_of(tenant, job_id))["tasks"][0]["attempt"])
