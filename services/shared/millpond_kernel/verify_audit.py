"""`python -m millpond_kernel.verify_audit SERVICE`: whether the audit trail of a service is as it was written."""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from millpond_kernel.audit import CHAIN_BATCH, audit_fields, audit_hash
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.serve import load_worker
from millpond_kernel.worker import connected_kernel


async def verify_audit(database: Database) -> int | None:
    """The sequence of the first audit row that was changed or is missing; None when the whole chain holds."""
    expected, previous = 1, b""
    while True:
        async with database.begin(SYSTEM) as unit:
            last = int(await unit.fetchval("SELECT last FROM outbox_counter WHERE name = 'audit'"))
            rows = await unit.fetch("SELECT * FROM audit WHERE seq >= $1 ORDER BY seq LIMIT $2", expected, CHAIN_BATCH)
        for row in rows:
            digest = audit_hash(previous, audit_fields(row))
            if row["seq"] != expected or bytes(row["hash"]) != digest:
                return expected
            expected, previous = expected + 1, digest
        if not rows:
            return None if expected == last + 1 else expected


async def _run(service: str) -> int | None:
    async with connected_kernel(load_worker(service)) as kernel:
        return await verify_audit(kernel.database)


def main(argv: Sequence[str] | None = None) -> None:
    """Says in one line how the trail is; the exit status is 1 when a row was changed or is missing."""
    parser = argparse.ArgumentParser(prog="millpond_kernel.verify_audit", description=__doc__)
    parser.add_argument("service")
    service = parser.parse_args(argv).service
    broken = asyncio.run(_run(service))
    if broken is not None:
        sys.exit(f"{service}: audit row {broken} was changed or is missing")
    sys.stdout.write(f"{service}: the audit trail holds\n")


if __name__ == "__main__":
    main()
