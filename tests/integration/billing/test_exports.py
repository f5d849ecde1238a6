"""Exports are whole whatever is killed: building goes on where it stopped, a download too; and a file has an end."""

import asyncio
import csv
import errno
import hashlib
import io
import json
import os
import signal
import sys
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from millpond_billing.background.work import build_one_export, forget_export
from millpond_billing.store.exports import get_export, insert_export, list_expired
from millpond_billing.store.tenants import save_tenant
from millpond_billing.usecases.exports import MOST_TRIES, Step, build_step, freeze
from millpond_billing.usecases.metering import take_allocations
from millpond_contracts.bodies.allocations import AllocationView
from millpond_contracts.bodies.bills import ExportFormat
from millpond_contracts.ids import ExportId, TenantId
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.problem import ProblemError
from tests.integration.billing.stage import (
    START,
    Stage,
    allocation,
    running_stage,
    seconds,
    share,
    states_of,
    tenant_view,
)
from tests.integration.databases import MigratedDatabase
from tests.integration.services import Caller
from tests.waiting import eventually

pytestmark = pytest.mark.integration

FEBRUARY = "2024-01-31T16:00:00Z"


async def order(caller: Caller, kind: str = "csv") -> ExportId:
    """A queued export of February."""
    spec = {"period_start": FEBRUARY, "format": kind}
    return ExportId.parse((await caller("POST", "/v1/exports", spec, expect=202)).json()["export_id"])


async def state_of(caller: Caller, export_id: ExportId) -> dict[str, Any]:
    """The export as its tenant sees it."""
    return dict((await caller("GET", f"/v1/exports/{export_id}", expect=200)).json())


async def use(stage: Stage, tenant: TenantId, count: int) -> None:
    """Tells of so many short allocations."""
    await stage.tell(*many(tenant, count))


def many(tenant: TenantId, count: int) -> list[AllocationView]:
    """So many short allocations of a device, each a second after the other."""
    return [
        allocation(
            tenant,
            devices=(share(100 + number),),
            bound_at=START + seconds(number),
            active_at=START + seconds(number + 0.5),
            released_at=START + seconds(number + 70.25),
        )
        for number in range(count)
    ]


def read_rows(content: bytes, kind: str) -> list[dict[str, Any]]:
    """The charges in a file, with amounts as texts."""
    if kind == "csv":
        return list(csv.DictReader(io.StringIO(content.decode())))
    found = [json.loads(line) for line in content.splitlines()]
    return [{**one, **one["amount"]} for one in found]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
async def test_export_when_its_worker_is_killed_amid_a_step_then_it_goes_on_and_is_the_same_to_the_byte(
    stage: Stage, tmp_path: Path, kind: str
) -> None:
    tenant, caller = await stage.tenant("acme")
    await use(stage, tenant, 20)
    await stage.close_statements(tenant)
    whole, broken = await order(caller, kind), await order(caller, kind)
    folder = tmp_path / "exports"
    assert await build_one_export(stage.billing, whole, folder)
    async with stage.billing.begin(SYSTEM) as unit:
        assert await freeze(unit, folder, broken)
    for _ in range(3):
        async with stage.billing.begin(SYSTEM) as unit:
            assert await build_step(unit, folder, broken, 7, 30) is Step.MORE
    half = await state_of(caller, broken)
    assert (half["state"], half["rows"], half["digest"]) == ("running", 21, None)
    # Part of a page, written after the last mark: what a worker leaves that is killed there.
    part = folder / f"{broken}.part"
    assert part.stat().st_size == half["bytes"]
    part.write_bytes(part.read_bytes() + b"2024-02-20T08:00:00Z,half a li")
    assert await build_one_export(stage.billing, broken, folder, step_rows=7)
    built, expected = await state_of(caller, broken), await state_of(caller, whole)
    charges = await stage.list_all(caller, f"/v1/charges?period_start={FEBRUARY}")
    assert (built["state"], built["rows"], built["bytes"], built["digest"]) == (
        "ready", len(charges), expected["bytes"], expected["digest"]
    )  # fmt: skip
    content = await caller("GET", f"/v1/exports/{broken}/content", expect=200)
    assert hashlib.sha256(content.content).hexdigest() == built["digest"]
    found = [(row["segment_id"], row["kind"], row["amount"]) for row in read_rows(content.content, kind)]
    assert found == [(one["segment_id"], one["kind"], one["amount"]["amount"]) for one in charges]
    assert sorted(file.name for file in folder.iterdir()) == sorted([f"{whole}.{kind}", f"{broken}.{kind}"])


async def test_export_when_what_was_written_is_gone_then_it_is_written_once_more(stage: Stage, tmp_path: Path) -> None:
    tenant, caller = await stage.tenant("acme")
    await use(stage, tenant, 5)
    made = await order(caller)
    async with stage.billing.begin(SYSTEM) as unit:
        await freeze(unit, tmp_path, made)
    async with stage.billing.begin(SYSTEM) as unit:
        await build_step(unit, tmp_path / "one machine", made, 3, 30)
    assert await build_one_export(stage.billing, made, tmp_path / "another", step_rows=3)
    rows = read_rows((tmp_path / "another" / f"{made}.csv").read_bytes(), "csv")
    assert len(rows) == (await state_of(caller, made))["rows"] == 5 * 3 * 2
    assert len({(row["segment_id"], row["kind"]) for row in rows}) == len(rows)


async def test_export_when_its_disk_is_full_half_way_then_it_fails_with_the_reason_and_leaves_no_file(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant, caller = await stage.tenant("acme")
    await use(stage, tenant, 5)
    killed, failed = await order(caller), await order(caller)
    for made in (killed, failed):
        async with stage.billing.begin(SYSTEM) as unit:
            await freeze(unit, tmp_path, made)
        await _step(stage, tmp_path, made)

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path))

    monkeypatch.setattr(os, "fsync", refuse)
    # Whoever is killed before the commit has deleted what the next one writes once more.
    with suppress(ConnectionResetError):
        async with stage.billing.begin(SYSTEM) as unit:
            assert await build_step(unit, tmp_path, killed, 5, 30) is Step.FAILED
            raise ConnectionResetError
    assert (await state_of(caller, killed))["state"] == "running"
    assert await build_one_export(stage.billing, failed, tmp_path)
    assert list(tmp_path.iterdir()) == []
    told = await state_of(caller, failed)
    assert (told["state"], told["error"]) == ("failed", "The file could not be written: No space left on device.")
    assert (told["rows"], told["bytes"], told["digest"]) == (None, None, None)
    monkeypatch.undo()
    assert not await build_one_export(stage.billing, failed, tmp_path)
    assert await build_one_export(stage.billing, killed, tmp_path)
    assert (await state_of(caller, killed))["rows"] == 5 * 3 * 2
    assert [file.name for file in tmp_path.iterdir()] == [f"{killed}.csv"]


async def test_export_when_try_after_try_ends_without_getting_on_then_it_fails_and_leaves_no_file(
    stage: Stage, tmp_path: Path
) -> None:
    tenant, caller = await stage.tenant("acme")
    await use(stage, tenant, 5)
    made = await order(caller)
    # Tries that each get on, if only a little, are never too many.
    for _ in range(MOST_TRIES + 1):
        async with stage.billing.begin(SYSTEM) as unit:
            assert await freeze(unit, tmp_path, made)
        async with stage.billing.begin(SYSTEM) as unit:
            assert await build_step(unit, tmp_path, made, 3, 30) is Step.MORE
    async with stage.billing.begin(SYSTEM) as unit:
        await unit.execute("UPDATE export SET place = 'no place' WHERE id = $1", made)
    for _ in range(MOST_TRIES):
        with pytest.raises(ProblemError):
            await build_one_export(stage.billing, made, tmp_path)
    assert (await state_of(caller, made))["state"] == "running"
    assert not await build_one_export(stage.billing, made, tmp_path)
    told = await state_of(caller, made)
    assert (told["state"], told["error"]) == ("failed", "It could not be built in 5 tries; create another export.")
    assert list(tmp_path.iterdir()) == []


async def test_export_when_work_ends_and_begins_while_it_is_built_then_it_holds_what_was_known_at_its_beginning(
    stage: Stage, tmp_path: Path
) -> None:
    tenant, caller = await stage.tenant("acme")
    await use(stage, tenant, 4)
    running = [allocation(tenant, devices=(share(900 + number),)) for number in range(3)]
    await stage.tell(*(states_of(one)[1] for one in running))
    made = await order(caller)
    async with stage.billing.begin(SYSTEM) as unit:
        await freeze(unit, tmp_path, made)
    await _step(stage, tmp_path, made)
    # By now the cursor has passed their start: they would be lost, or be there twice, if they were read as written.
    await stage.tell(*running, allocation(tenant, devices=(share(7),)))
    assert await build_one_export(stage.billing, made, tmp_path, step_rows=5)
    rows = read_rows((tmp_path / f"{made}.csv").read_bytes(), "csv")
    assert (await state_of(caller, made))["rows"] == len(rows)
    assert len({(row["allocation_id"], row["sku"], row["kind"]) for row in rows}) == len(rows)
    late = [row for row in rows if row["allocation_id"] in {str(one.allocation_id) for one in running}]
    assert {(row["sku"], row["seconds"], row["segment_id"]) for row in late if row["kind"] == "usage"} == {
        (sku, "101", "") for sku in ("cpu/*/on_demand", "memory/*/on_demand", "device/h100/on_demand")
    }
    assert len(rows) == (4 + 3) * 3 * 2
    assert "0.007" not in {row["quantity"] for row in rows}


async def _step(stage: Stage, folder: Path, export_id: ExportId) -> None:
    async with stage.billing.begin(SYSTEM) as unit:
        assert await build_step(unit, folder, export_id, 5, 30) is Step.MORE


@asynccontextmanager
async def slow_worker(stage: Stage, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Celery worker that marks its progress after every charge; killed at the end unless it is dead."""
    settings = stage.services.settings["billing"]
    environment = {
        **os.environ,
        "MILLPOND_BILLING_DATABASE_URL": settings.database_url.get_secret_value(),
        "MILLPOND_REDIS_URL": settings.redis_url.get_secret_value(),
        "MILLPOND_REDIS_PREFIX": settings.redis_prefix,
        "MILLPOND_BILLING_EXPORT_FOLDER": str(folder),
        "MILLPOND_BILLING_EXPORT_STEP_ROWS": "1",
    }
    options = ("--pool", "solo", "--loglevel", "warning", "--without-gossip", "--without-mingle", "--without-heartbeat")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "celery", "-A", "millpond_billing.celery_app", "worker", *options),
        env=environment,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()


async def test_export_when_a_real_worker_is_killed_then_the_next_one_goes_on_where_it_stopped(
    migrated: MigratedDatabase, tmp_path: Path
) -> None:
    folder = tmp_path / "exports"
    # Statements are left alone: here the broker's only messages are about the export.
    quiet = {"export_folder": folder, "overdue_seconds": 1, "statement_grace_seconds": 2_592_000}
    async with running_stage(migrated, **quiet) as stage:
        tenant, caller = await stage.tenant("acme")
        await use(stage, tenant, 150)
        made = await order(caller)

        async def begun() -> bool:
            return ((await state_of(caller, made))["rows"] or 0) >= 20

        async with slow_worker(stage, folder) as worker:
            await eventually(begun, 60)
            worker.send_signal(signal.SIGKILL)
            await worker.wait()
        killed = await state_of(caller, made)
        assert killed["state"] == "running"
        assert 20 <= killed["rows"] < 900
        seen: list[int] = []

        async def ready() -> bool:
            found = await state_of(caller, made)
            seen.append(found["rows"])
            return bool(found["state"] == "ready")

        async with slow_worker(stage, folder):
            await eventually(ready, 120)
        # It never went back.
        assert min(seen) >= killed["rows"]
        built = await state_of(caller, made)
        content = (folder / f"{made}.csv").read_bytes()
        rows = read_rows(content, "csv")
        assert len(rows) == built["rows"] == 150 * 3 * 2
        assert len({(row["segment_id"], row["kind"]) for row in rows}) == len(rows)
        assert hashlib.sha256(content).hexdigest() == built["digest"]
        assert built["as_of"] == killed["as_of"]


async def test_export_when_many_times_as_long_then_it_takes_no_more_memory(database: Database, tmp_path: Path) -> None:
    # Nothing else runs in this process, so what is measured is the building alone.
    peaks = {}
    for count in (10, 40, 300):
        owner = tenant_view()
        async with database.begin(SYSTEM) as unit:
            await save_tenant(unit, owner)
            await take_allocations(unit, many(owner.tenant_id, count))
            made = await insert_export(unit, owner.tenant_id, ExportFormat.CSV, START, START + timedelta(days=1))
        async with database.begin(SYSTEM) as unit:
            await freeze(unit, tmp_path, made.export_id)
        tracemalloc.start()
        try:
            assert await build_one_export(database, made.export_id, tmp_path, step_rows=40)
            peaks[count] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        async with database.begin(SYSTEM) as unit:
            assert (await get_export(unit, made.export_id)).rows == count * 6
    # The first one was for what is loaded and kept once.
    assert peaks[300] < 1.3 * peaks[40]


async def test_export_when_its_time_is_over_then_file_and_content_are_gone_and_the_row_says_so(
    stage: Stage, tmp_path: Path
) -> None:
    tenant, caller = await stage.tenant("acme")
    await use(stage, tenant, 1)
    made, kept = await order(caller, "jsonl"), await order(caller)
    folder = tmp_path / "exports"
    assert await build_one_export(stage.billing, made, folder)
    assert await build_one_export(stage.billing, kept, folder)
    assert not await forget_export(stage.billing, made, folder)
    async with stage.billing.begin(SYSTEM) as unit:
        await unit.execute("UPDATE export SET expires_at = clock_timestamp() WHERE id = $1", made)
    gone = await caller("GET", f"/v1/exports/{made}/content")
    assert (gone.status_code, gone.json()["code"]) == (410, "billing.export.expired")
    async with stage.billing.begin(SYSTEM) as unit:
        assert await list_expired(unit, datetime.now(UTC), 10) == [made]
    assert await forget_export(stage.billing, made, folder)
    assert not await forget_export(stage.billing, made, folder)
    assert [file.name for file in folder.iterdir()] == [f"{kept}.csv"]
    assert (await state_of(caller, made))["state"] == "expired"
    gone = await caller("GET", f"/v1/exports/{made}/content")
    assert (gone.status_code, gone.json()["code"]) == (410, "billing.export.expired")
    await caller("GET", f"/v1/exports/{kept}/content", expect=200)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
async def test_content_when_a_part_is_asked_for_then_ranges_are_answered_as_the_standard_says(
    stage: Stage, tmp_path: Path, kind: str
) -> None:
    tenant, caller = await stage.tenant("acme")
    await use(stage, tenant, 3)
    made = await order(caller, kind)
    await build_one_export(stage.billing, made, tmp_path / "exports")
    path = f"/v1/exports/{made}/content"
    plain = await caller("GET", path, expect=200)
    whole, tag = plain.content, plain.headers["etag"]
    assert plain.headers["content-type"].startswith({"csv": "text/csv", "jsonl": "application/x-ndjson"}[kind])
    assert plain.headers["accept-ranges"] == "bytes"
    assert tag == f'"{(await state_of(caller, made))["digest"]}"'
    size = len(whole)
    for wanted, start, end in (
        ("bytes=0-", 0, size),
        ("bytes=10-19", 10, 20),
        (f"bytes={size - 1}-", size - 1, size),
        ("bytes=-5", size - 5, size),
        (f"bytes=5-{size + 100}", 5, size),
    ):
        part = await caller("GET", path, headers={"Range": wanted, "If-Range": tag}, expect=206)
        assert part.content == whole[start:end]
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
        assert part.headers["content-length"] == str(end - start)
    for ignored in ("lines=1-2", "bytes=5-2", "bytes=", "bytes=0-1,4-5"):
        assert (await caller("GET", path, headers={"Range": ignored}, expect=200)).content == whole
    other = await caller("GET", path, headers={"Range": "bytes=10-", "If-Range": '"another"'}, expect=200)
    assert other.content == whole
    beyond = await caller("GET", path, headers={"Range": f"bytes={size}-", "If-Range": tag})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{size}")
    assert beyond.json()["code"] == "billing.export.range"
