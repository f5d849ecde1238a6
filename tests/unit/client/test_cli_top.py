"""`top`: what it shows to whom, printed once without a terminal, and kept up to date on one until Ctrl-C."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from millpond_contracts.bodies.jobs import JobState, JobView
from millpond_contracts.bodies.pools import HostCapacity, PoolCapacity
from millpond_contracts.bodies.tenants import Me, Role
from millpond_contracts.bodies.verdicts import UsageLine
from tests.unit.client.commands import run
from tests.unit.client.fake_api import KEY, FakeApi, Handler, page
from tests.unit.client.things import NOW, POOL, TENANT, VIRTUAL_POOL, job, node, pool

pytestmark = pytest.mark.unit


def usage(resource: str, used: int, hard: int, *, blocked: bool = False) -> UsageLine:
    return UsageLine(
        virtual_pool_id=VIRTUAL_POOL,
        virtual_pool="main",
        tenant_id=TENANT,
        pool_id=POOL,
        resource=resource,
        flavor=None,
        used=used,
        guaranteed=hard,
        hard=hard,
        borrowed=0,
        available=hard - used,
        blocked=blocked,
        missing=1000 if blocked else 0,
        limit_generation=1,
    )


def jobs(*found: JobView) -> Handler:
    def answer(request: httpx.Request) -> httpx.Response:
        wanted = request.url.params.get_list("state")
        return page([each for each in found if not wanted or each.state in wanted])

    return answer


@pytest.fixture
def api() -> FakeApi:
    figures = PoolCapacity(
        pool_id=POOL,
        as_of=NOW,
        nodes={"ready": 2, "schedulable": 1},
        hosts=[
            HostCapacity(resource="cpu", total=8000, unschedulable=0, allocated=1500, reserved=0, available=6500),
            HostCapacity(resource="memory", total=4096, unschedulable=0, allocated=1024, reserved=0, available=3072),
        ],
        devices=[],
        generation=1,
    )
    waiting = job("big", JobState.PENDING).model_copy(update={"pending_reason": "limit_reached"})
    running = [job(f"train-{number}") for number in range(30)]
    api = FakeApi().on("GET", "/v1/me", Me(role=Role.OPERATOR, tenant_id=None, project_id=None, api_key_id=None))
    api.on("GET", "/v1/pools", page([pool()])).on("GET", f"/v1/pools/{POOL}/capacity", figures)
    api.on("GET", "/v1/nodes", page([node()])).on("GET", "/v1/jobs", jobs(waiting, *running))
    return api.on("GET", "/v1/usage", page([usage("cpu", 0, 4000), usage("memory", 4096, 4096, blocked=True)]))


def test_top_when_there_is_no_terminal_then_all_parts_once(api: FakeApi) -> None:
    ran = run(api, "top")
    out = "\n".join(" ".join(line.split()) for line in ran.out.splitlines())
    assert ran.code == 0
    assert "30 running, 1 waiting" in out
    assert "default 1 of 2 1.5 of 8 1 GiB of 4 GiB -" in out
    assert "vm ready" in out
    assert "big pending" in out
    assert "limit reached" in out
    # What is full and waited for comes first.
    assert out.index("main memory") < out.index("main cpu")
    assert "100%, work waits for 1000 MiB" in out
    assert "10 more" in out
    assert len(api.asked("GET", "/v1/me")) == 1


def test_top_when_a_tenant_asks_then_machines_are_left_out(api: FakeApi) -> None:
    api.on("GET", "/v1/me", Me(role=Role.VIEWER, tenant_id=TENANT, project_id=None, api_key_id=None))
    ran = run(api, "top", "--once")
    assert (ran.code, "machines" in ran.out.splitlines(), api.asked("GET", "/v1/nodes")) == (0, False, [])


def test_top_when_json_is_wanted_then_what_the_api_said(api: FakeApi) -> None:
    document = json.loads(run(api, "top", "-o", "json").out)
    assert (len(document["running"]), document["pending"][0]["pending_reason"]) == (30, "limit_reached")
    assert [line["resource"] for line in document["usage"]] == ["cpu", "memory"]


@contextmanager
def serving(api: FakeApi) -> Iterator[str]:
    """The fake API at an address, for a command line in a process of its own."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = api.handle(httpx.Request("GET", f"http://millpond.test{self.path}"))
            self.send_response(answer.status_code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing: the test's output is not the place."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_top_when_on_a_terminal_then_it_goes_on_until_interrupted(api: FakeApi) -> None:
    with serving(api) as url:
        ours, theirs = pty.openpty()
        environment = {**os.environ, "MILLPOND_URL": url, "MILLPOND_API_KEY": KEY, "TERM": "xterm", "COLUMNS": "120"}
        watching = subprocess.Popen(
            [sys.executable, "-m", "millpond", "top", "--interval", "0.5"],
            stdout=theirs,
            stderr=theirs,
            env=environment,
        )
        os.close(theirs)
        seen = ""
        while seen.count("30 running") < 2:
            seen += os.read(ours, 65_536).decode(errors="replace")
        watching.send_signal(signal.SIGINT)
        rest = b""
        while watching.poll() is None:
            try:
                rest += os.read(ours, 65_536)
            except OSError:  # Linux's answer when the last writer of a terminal has gone
                break
        assert watching.wait(30) == 0
        os.close(ours)
    assert "Traceback" not in seen + rest.decode(errors="replace")
    # The alternate screen was left, so that the terminal is as before.
    assert re.search(r"\x1b\[\?1049l", rest.decode(errors="replace"))


def test_completion_when_a_name_is_begun_then_those_that_fit(api: FakeApi) -> None:
    with serving(api) as url:
        assert set(complete(url, "millpond logs tr")) == {f"train-{number}" for number in range(30)}
        assert complete(url, "millpond node drain v") == ["vm"]
        assert complete(url, "millpond audit --service sch") == ["scheduler"]


def test_completion_when_nothing_answers_then_nothing_is_said() -> None:
    assert complete("http://127.0.0.1:9", "millpond logs tr") == []


def complete(url: str, line: str) -> list[str]:
    words = line.split(" ")
    environment = {
        **os.environ,
        "MILLPOND_URL": url,
        "MILLPOND_API_KEY": KEY,
        "_MILLPOND_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'millpond'; from millpond.__main__ import main; main()"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_completion_when_installed_then_the_shell_reads_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv = ['millpond', '--install-completion', 'bash'];"
            " from millpond.__main__ import main; main()",
        ],
        env={**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "millpond" in (tmp_path / ".bashrc").read_text(encoding="utf-8")
