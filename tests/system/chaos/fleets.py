"""Processes of simulated nodes beside a stack, each behind a wire of its own, started again when they were killed."""

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from millpond.stack.launch import launch
from millpond.stack.processes import python_command
from tests.system.chaos.clocks import Clock
from tests.system.chaos.wire import Wire
from tests.system.stack import Stack


@dataclass(slots=True)
class Fleet:
    """One process of simulated nodes. `join_token` may be used by as many nodes as there are."""

    name: str
    stack: Stack
    wire: Wire
    url: str
    join_token: str
    nodes: str
    clock: Clock
    _process: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        """Who its nodes are, and their journals."""
        return self.stack.base / self.name

    def start(self) -> None:
        """Starts the process; its nodes join, or go on."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        description = self.folder / "nodes.yaml"
        description.write_text(self.nodes, encoding="utf-8")
        where = ("--simulate", str(description), "--url", self.url, "--state-dir", str(self.folder / "state"))
        self._process = launch(
            python_command("millpond_node_agent.main", "run", *where),
            environment={
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(self.folder),
                "MILLPOND_JOIN_TOKEN": self.join_token,
                **self.clock.environment,
            },
            folder=self.folder,
            log_file=self.stack.paths.logs / f"{self.name}.log",
            death_signal=signal.SIGTERM,
        )

    def signal(self, number: signal.Signals) -> None:
        """Signals the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def restart(self) -> None:
        """Kills it and starts it again."""
        self.signal(signal.SIGKILL)
        self._wait()
        self.start()

    def stop(self) -> None:
        """Ends it."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            self._wait()

    def _wait(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
