"""Python programs in processes of their own, which tests kill by hand."""

import subprocess
import sys


def start_python(program: str, *arguments: str) -> subprocess.Popen[str]:
    """The running program; what it prints can be read."""
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True)
