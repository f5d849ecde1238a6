"""Migrations run while the version before them serves: they add, and lock nothing for long. Decision 160 says why.

Held against every revision after the earlier version that `tests.earlier` names; what came before was never run beside
a version that serves.
"""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from millpond_kernel.revisions import migrations_folder
from tests.earlier import REVISION

pytestmark = pytest.mark.architecture

# Statement, as it is shown when refused -> why it may be. Such as an index on a table that is known to stay small.
ACCEPTED: dict[str, str] = {
    "ALTER TABLE scheduler.node_guard VALIDATE CONSTRAINT node_guard_slots": "a row for each node, empty arrays yet"
}

_NEW_TABLE = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?([a-z_.]+)", re.IGNORECASE)
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX (?:IF NOT EXISTS )?\w+ ON ([a-z_.]+)", re.IGNORECASE)
_ON_TABLE = re.compile(r"(?:CREATE (?:TRIGGER|POLICY) .*? ON|ALTER TABLE) ([a-z_.]+)", re.IGNORECASE)
_HARMLESS = re.compile(r"(?:CREATE TABLE|CREATE SCHEMA|CREATE FUNCTION|GRANT|COMMENT ON) ", re.IGNORECASE)
_ALTER = re.compile(r"ALTER TABLE [a-z_.]+ (.*)", re.IGNORECASE)
# A column that old rows and old writers can do without, whose default is a constant: no row is written or read for it.
_CONSTANT = r"DEFAULT (?:'[^']*'|[\w.]+)"
_CLAUSE = re.compile(
    rf"ADD COLUMN (?:IF NOT EXISTS )?\w+ [a-z]+(?:\[\])?(?:(?: NOT NULL)? {_CONSTANT})?"
    rf"|ALTER (?:COLUMN )?\w+ (?:DROP NOT NULL|SET {_CONSTANT})"
    r"|ADD CONSTRAINT .* NOT VALID",
    re.IGNORECASE,
)


class _Operations:
    """Stands for Alembic's operations and keeps what a revision executes."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def execute(self, sqltext: str) -> None:
        self.statements.append(sqltext)


def refused(statements: list[str]) -> Iterator[str]:
    """The statements of one revision that take something away, lock a table of old for long, or cannot be judged."""
    made: set[str] = set()
    for statement in statements:
        text = " ".join(re.sub(r"--.*", "", statement).split()).rstrip("; ")
        if found := _NEW_TABLE.match(text):
            made.add(found[1])
        table = _INDEX.match(text) or _ON_TABLE.match(text)
        if not (_HARMLESS.match(text) or (table and table[1] in made) or _only_adds(text)):
            yield text


def _only_adds(text: str) -> bool:
    found = _ALTER.match(text)
    return found is not None and all(_CLAUSE.fullmatch(clause) for clause in found[1].split(", "))


def _revisions() -> list[Path]:
    paths = sorted((migrations_folder() / "versions").glob("*.py"))
    return [path for path in paths if path.stem > REVISION]


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"revision_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_revisions_when_listed_then_there_are_some_after_the_earlier_version() -> None:
    assert (migrations_folder() / "versions" / f"{REVISION}.py").is_file()
    assert _revisions()


@pytest.mark.parametrize("path", _revisions(), ids=lambda path: path.stem)
def test_revision_when_run_beside_the_version_before_it_then_it_only_adds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, operations = _loaded(path), _Operations()
    monkeypatch.setattr(module, "op", operations)
    module.upgrade()
    assert operations.statements
    assert [text for text in refused(operations.statements) if text not in ACCEPTED] == []


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE scheduler.task DROP COLUMN labels",
        "ALTER TABLE scheduler.task RENAME COLUMN labels TO tags",
        "ALTER TABLE scheduler.task ADD COLUMN zone text, DROP COLUMN labels",
        "ALTER TABLE scheduler.task ADD COLUMN zone text NOT NULL",
        "ALTER TABLE scheduler.task ADD COLUMN zone uuid DEFAULT gen_random_uuid()",
        "ALTER TABLE scheduler.task ADD COLUMN size integer CHECK (size > 0)",
        "ALTER TABLE scheduler.task ALTER COLUMN priority TYPE bigint",
        "ALTER TABLE scheduler.task ALTER COLUMN priority SET NOT NULL",
        "ALTER TABLE scheduler.task ADD CONSTRAINT positive CHECK (size > 0)",
        "CREATE INDEX task_zone ON scheduler.task (zone)",
        "CREATE TRIGGER watch BEFORE UPDATE ON scheduler.task EXECUTE FUNCTION scheduler.watch()",
        "DROP TABLE scheduler.demand",
        "UPDATE scheduler.task SET priority = 50",
        "LOCK TABLE scheduler.task",
    ],
)
def test_statement_when_it_takes_away_or_locks_for_long_then_it_is_refused(statement: str) -> None:
    assert list(refused(["CREATE TABLE scheduler.other (id uuid)", statement])) == [statement]


def test_statements_when_about_a_new_table_or_a_column_that_may_be_absent_then_they_pass() -> None:
    script = [
        "CREATE TABLE scheduler.other (\n    id uuid PRIMARY KEY,\n    at timestamptz NOT NULL -- since when\n);",
        "CREATE UNIQUE INDEX other_at ON scheduler.other (at) WHERE at IS NOT NULL;",
        "ALTER TABLE scheduler.other ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY system ON scheduler.other TO millpond_scheduler_system USING (true)",
        "GRANT SELECT ON scheduler.other TO millpond_scheduler_tenant",
        "ALTER TABLE scheduler.task ADD COLUMN zone text,\n ADD COLUMN hops integer NOT NULL DEFAULT 0;",
        "ALTER TABLE scheduler.task ADD COLUMN seen timestamptz DEFAULT NULL, ALTER COLUMN zone DROP NOT NULL",
    ]
    assert list(refused(script)) == []
