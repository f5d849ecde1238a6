"""`millpond`, also as `python -m millpond`: loads the command line and runs it."""

import signal
from importlib import import_module


def main() -> None:
    """Runs the command line. Until it is loaded, which takes most of a second, Ctrl-C ends it without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    command_line = import_module("millpond.cli.main")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command_line.main()


if __name__ == "__main__":
    main()
