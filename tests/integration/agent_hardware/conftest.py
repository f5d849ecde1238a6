"""The real nvidia-ml-py over a stand-in for NVIDIA's library, compiled here and given to the probe child alone."""

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from millpond_node_agent.hardware.supervisor import HardwareSupervisor
from tests.factories.machines import MachineTree

StubEnvironment = Callable[..., dict[str, str]]
Supervise = Callable[..., HardwareSupervisor]

_SOURCE = Path(__file__).with_name("nvml_stub.c")


@pytest.fixture(scope="session")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the stand-in, linked under the name that the loader looks for."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the stand-in for libnvidia-ml.so.1 with")
    folder = tmp_path_factory.mktemp("nvml")
    name = "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{name}", "-o", str(folder / name)]
    subprocess.run([*command, str(_SOURCE)], check=True, capture_output=True, text=True)
    return folder


@pytest.fixture
def stub_environment(nvml_folder: Path) -> StubEnvironment:
    """Makes a child's environment in which NVML is the stand-in; keywords become NVML_STUB_… variables."""

    def make(**settings: object) -> dict[str, str]:
        variables = {f"NVML_STUB_{name.upper()}": str(value) for name, value in settings.items()}
        return {**os.environ, **variables, "LD_LIBRARY_PATH": str(nvml_folder)}

    return make


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A control group whose processes can be held so that SIGKILL does not end them: what a stuck driver looks like."""
    folder = Path("/sys/fs/cgroup/freezer") / f"millpond-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer control group of version 1 to make here: {error}")
    yield folder
    (folder / "freezer.state").write_text("THAWED")
    for pid in (folder / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    for _ in range(50):
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.1)


@pytest.fixture
def machine(tmp_path: Path) -> MachineTree:
    """A complete host with two H100s on its PCI bus, in the slots that the stand-in names."""
    tree = MachineTree(tmp_path)
    tree.add_plain_host()
    tree.add_card("0000:18:00.0", numa=0)
    tree.add_card("0000:19:00.0", numa=1)
    return tree


@pytest.fixture
async def supervise(machine: MachineTree, stub_environment: StubEnvironment) -> AsyncIterator[Supervise]:
    """Makes supervisors of the made machine and ends their children afterwards."""
    async with AsyncExitStack() as stack:

        def make(**settings: object) -> HardwareSupervisor:
            supervisor = HardwareSupervisor(machine.root, environment=stub_environment(**settings))
            stack.push_async_callback(supervisor.close)
            return supervisor

        yield make
