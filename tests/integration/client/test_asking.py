"""`millpond submit` on a real terminal: what it shows, what it asks, and that an answer decides."""

import asyncio
import os
import pty
import subprocess
import sys

import pytest

from tests.integration.client.served import Served

pytestmark = pytest.mark.integration


async def on_a_terminal(served: Served, key: str, answer: str, *arguments: str) -> tuple[int, str]:
    """Runs the command line with a terminal on all sides and types `answer`; its exit code and what was on screen."""

    def run() -> tuple[int, str]:
        ours, theirs = pty.openpty()
        environment = {**os.environ, "MILLPOND_URL": served.url, "MILLPOND_API_KEY": key, "COLUMNS": "200"}
        process = subprocess.Popen(
            [sys.executable, "-m", "millpond", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)
        os.write(ours, answer.encode())
        seen = bytearray()
        while True:
            try:
                piece = os.read(ours, 65_536)
            except OSError:  # the other side is closed: the program has ended
                break
            if not piece:
                break
            seen += piece
        os.close(ours)
        return process.wait(timeout=30), seen.decode()

    return await asyncio.to_thread(run)


async def names(served: Served) -> list[str]:
    return await served.call(lambda: [job.name for job in served.client.jobs.list()])


async def test_submit_when_a_person_says_no_then_nothing_is_submitted(served: Served) -> None:
    key = await served.make_tenant()
    code, seen = await on_a_terminal(served, key, "n\n", "submit", "--name", "asked", "--", "true")
    assert code == 1, seen
    assert "it would wait: the pool has no node" in seen
    assert "submit it?" in seen
    assert "not submitted" in seen
    assert await names(served) == []


async def test_submit_when_a_person_presses_enter_then_it_is_submitted(served: Served) -> None:
    key = await served.make_tenant()
    code, seen = await on_a_terminal(served, key, "\n", "submit", "--name", "asked", "--", "true")
    assert (code, "millpond explain asked" in seen) == (0, True), seen
    assert await names(served) == ["asked"]


async def test_submit_when_yes_is_said_before_then_nobody_is_asked(served: Served) -> None:
    key = await served.make_tenant()
    code, seen = await on_a_terminal(served, key, "", "submit", "-y", "--name", "sure", "--", "true")
    assert (code, "submit it?" in seen) == (0, False), seen
    assert await names(served) == ["sure"]
