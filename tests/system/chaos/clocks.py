"""Wall clocks that jump, of chosen processes alone: a library between them and the C library adds what a file says."""

import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")


@dataclass(frozen=True, slots=True)
class Clock:
    """One wall clock, shared by all processes that were started with `environment`."""

    library: Path
    file: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs to go by this clock."""
        return {"LD_PRELOAD": str(self.library), "CHAOS_CLOCK": str(self.file)}

    def jump(self, seconds: int) -> None:
        """Moves it to so many seconds from the true time."""
        with self.file.open("r+b") as kept:
            kept.write(struct.pack("l", seconds))


def build_clock_library(folder: Path) -> Path:
    """Compiles the library into a folder."""
    library = folder / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"], check=True)
    library.chmod(0o755)
    return library


def make_clock(library: Path, file: Path) -> Clock:
    """A clock that goes right; `file` is made."""
    file.write_bytes(struct.pack("l", 0))
    file.chmod(0o644)
    return Clock(library, file)
