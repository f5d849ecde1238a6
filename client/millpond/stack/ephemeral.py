"""Both engines for the time of a test or a benchmark."""

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from millpond.stack.engines import RunningEngine, start_engine
from millpond.stack.errors import EngineFailed
from millpond.stack.paths import StackPaths, locate_stack
from millpond.stack.ports import HeldPorts
from millpond.stack.postgres import PostgresEngine
from millpond.stack.users import find_stack_user
from millpond.stack.valkey import ValkeyEngine


class EphemeralEngines:
    """A PostgreSQL and a Valkey of one's own, started together in about a second.

    Use it once per test session and make a database per test:

        @pytest.fixture(scope="session")
        def engines() -> Iterator[EphemeralEngines]:
            with EphemeralEngines() as engines:
                yield engines

    `postgres_url` is the owner's (superuser), on the empty database `millpond`; `redis_url` is an empty database 0.
    `postgres` and `valkey` can be stopped, killed and started again at the same URL, to test faults. Start it in
    the main thread: the engines end with the thread that started them.

    Args:
        folder: Where to keep the data; None = a temporary folder that is removed at the end. A folder given stays,
            and a later start continues with its data. Under root it must be one that other users can enter, which
            pytest's `tmp_path` is not.
        durable: True runs with fsync and the append-only file, as a stack does; benchmarks and crash tests want
            that, other tests do not.
    """

    def __init__(self, folder: Path | None = None, *, durable: bool = False) -> None:
        self._given = folder
        self._durable = durable
        self._user = find_stack_user()
        self._temporary: Path | None = None
        self._running: list[RunningEngine] = []
        self._ports = HeldPorts()

    @property
    def postgres(self) -> RunningEngine:
        """The running PostgreSQL."""
        return self._find("postgres")

    @property
    def valkey(self) -> RunningEngine:
        """The running Valkey."""
        return self._find("valkey")

    @property
    def postgres_url(self) -> str:
        """`postgresql://` URL of the owner of the database `millpond`."""
        return self.postgres.engine.url

    @property
    def redis_url(self) -> str:
        """`redis://` URL of database 0, with the password."""
        return self.valkey.engine.url

    def start(self) -> None:
        """Starts both engines; `with` does the same."""
        try:
            paths = self._prepare_folder()
            for engine in (
                PostgresEngine(paths, self._ports.take(), self._user, self._durable),
                ValkeyEngine(paths, self._ports.take(), self._user, self._durable),
            ):
                self._running.append(start_engine(engine, paths.logs / f"{engine.name}.log"))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops both engines and removes a temporary folder."""
        while self._running:
            self._running.pop().stop()
        self._ports.release()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _prepare_folder(self) -> StackPaths:
        if self._given is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="millpond-"))
            # mkdtemp makes it 0700 for the current user; the folder inside is the engines' own.
            self._temporary.chmod(0o711)
        folder = self._given or (self._temporary or Path()) / "stack"
        paths = locate_stack(data_folder=folder, user=self._user)
        paths.prepare(self._user)
        return paths

    def _find(self, name: str) -> RunningEngine:
        for running in self._running:
            if running.engine.name == name:
                return running
        raise EngineFailed(f"{name} is not started; use `with EphemeralEngines() as engines:`")
