"""Run as an unprivileged user by `test_adoption`: one task that ends, one that is stopped; prints what was seen."""

import asyncio
import json
import sys
from pathlib import Path

from millpond_node_agent.runtimes.process import ProcessRuntime, ProcessSettings
from millpond_node_agent.runtimes.protocol import TaskSpec, TaskState, TaskTerms


def make_spec(name: str, script: str) -> TaskSpec:
    terms = TaskTerms(name, "job", "task", "ten", 1, 1, 500, 64, (), 1.0)
    return TaskSpec(terms, ("/bin/sh", "-c", script), {}, None, None)


async def log_of(runtime: ProcessRuntime, name: str) -> str:
    return (await runtime.read_log(name, 0, 1000)).data.decode()


async def wait_for(runtime: ProcessRuntime, ended: str, spoke: str) -> None:
    while True:
        has_ended = (await runtime.status(ended)).state is not TaskState.RUNNING
        if has_ended and await log_of(runtime, spoke):
            return
        await asyncio.sleep(0.02)


async def main(place: Path) -> None:
    runtime = ProcessRuntime(ProcessSettings(place / "own" / "state", place / "own" / "work"))
    ends = make_spec("ends", "id -u; mkdir shut; chmod 0 shut; exit 4")
    stays = make_spec("stays", "(setsid sh -c 'trap \"\" TERM; while :; do sleep 0.1; done' & echo $!); sleep 300")
    for spec in (ends, stays):
        await runtime.prepare(spec)
        await runtime.start(spec)
    await wait_for(runtime, ended="ends", spoke="stays")
    found: dict[str, object] = {
        "isolation": runtime.report().isolation,
        "exit_code": (await runtime.status("ends")).exit_code,
        "uid": (await log_of(runtime, "ends")).strip(),
        "daemon": int(await log_of(runtime, "stays")),
        "stopped": (await runtime.stop("stays", 0.2)).state,
    }
    await runtime.remove("ends")
    await runtime.remove("stays")
    found["left"] = [path.name for path in (place / "own" / "work").iterdir()]
    print(json.dumps(found))


asyncio.run(main(Path(sys.argv[1])))
