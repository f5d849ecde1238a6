"""Takes `data/` anew from a checkout of an earlier commit that has an environment of its own.

    git worktree add --detach ../earlier COMMIT && (cd ../earlier && tools/install)
    python -m tests.earlier.recording ../earlier      # a few minutes: it runs tests of that commit

It is also the pytest plugin that those tests run with: it keeps the fullest body of each event type that is committed.
Only the standard library and the earlier code's kernel are imported, so that it runs in either environment.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from millpond_kernel import uow

_HERE = Path(__file__).resolve().parent
_OUTPUT = "MILLPOND_RECORD_OUTBOX"
# Together they commit every event type at least once.
_TESTS = (
    "tests/scenarios",
    "tests/integration/registry",
    "tests/integration/autoscaler",
    "tests/integration/billing/test_reconcile_loop.py",
    "tests/integration/billing/test_statement_closing.py",
    "tests/integration/scheduler/test_recounts.py",
    "tests/integration/agent/test_lending.py",
)
_DOCUMENTS = ("registry", "quota", "scheduler", "autoscaler", "billing", "events")
# Keys under which names lead to schemas: below them a `title` is a field, elsewhere it is for people.
_NAMED = ("properties", "patternProperties", "schemas", "$defs", "events", "paths", "content", "responses")
_FOR_PEOPLE = {
    *("title", "description", "examples", "summary", "info", "tags", "x-millpond-roles", "security", "headers"),
    *("default", "securitySchemes", "$schema", "openapi", "operationId"),
}
_LONGEST_ROW = 12_000

_fullest: dict[str, tuple[int, str]] = {}


def pytest_configure() -> None:
    """Lets every unit of work keep what it is about to insert into the outbox."""
    columns_of = uow._event_columns

    def recording(events: Any) -> Any:
        columns = columns_of(events)
        for kind, subject, tenant, generation, body in zip(*columns[1:6], strict=True):
            _keep(kind, subject, tenant and str(tenant), generation, json.loads(body))
        return columns

    uow._event_columns = recording


def pytest_unconfigure() -> None:
    """Writes what was kept."""
    rows = [row for _, (_, row) in sorted(_fullest.items())]
    Path(os.environ[_OUTPUT]).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def _keep(kind: str, subject: str, tenant: str | None, generation: int, body: Any) -> None:
    head = {"type": kind, "subject": subject, "tenant_id": tenant, "generation": generation}
    row = json.dumps({**head, "body": body}, separators=(",", ":"), ensure_ascii=False)
    fullness = _leaves(body)
    if len(row) <= _LONGEST_ROW and fullness > _fullest.get(kind, (-1, ""))[0]:
        _fullest[kind] = (fullness, row)


def _leaves(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return int(value not in (None, "")) if inner is None else sum(map(_leaves, inner))


def without_words(schema: Any) -> Any:
    """A description of an interface without what is only for people."""
    if isinstance(schema, list):
        return [without_words(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: without_words(one) for name, one in value.items()} if key in _NAMED else without_words(value)
        for key, value in schema.items()
        if key not in _FOR_PEOPLE
    }


def main() -> None:
    """Runs the earlier tests and writes all files of `data/`."""
    checkout, data = Path(sys.argv[1]).resolve(), _HERE / "data"
    for name in _DOCUMENTS:
        document = json.loads((checkout / "openapi" / f"{name}.json").read_text(encoding="utf-8"))
        text = json.dumps(without_words(document), separators=(",", ":"))
        (data / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
    subprocess.run(
        [".venv/bin/pytest", "-q", "-p", "recording", *_TESTS],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(_HERE), _OUTPUT: str(data / "outbox.jsonl")},
        check=True,
    )


if __name__ == "__main__":
    main()
