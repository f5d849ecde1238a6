"""Running the command line in a test, against a fake API or a real one."""

from dataclasses import dataclass

from typer.testing import CliRunner

from millpond.cli.main import app
from millpond.cli.session import Session
from tests.unit.client.fake_api import KEY, URL, FakeApi


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def err_words(self) -> str:
        """What was said on stderr, without the frames and line breaks of a narrow screen."""
        return " ".join(self.err.replace("│", " ").split())


def run(api: FakeApi | None, *arguments: str, columns: int = 240, stdin: str | None = None, **environment: str) -> Ran:
    """Runs one command line."""
    base = {"MILLPOND_URL": URL, "MILLPOND_API_KEY": KEY, "COLUMNS": str(columns), "NO_COLOR": "1"}
    session = Session() if api is None else api.session()
    result = CliRunner().invoke(app, list(arguments), obj=session, env=base | environment, input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)
