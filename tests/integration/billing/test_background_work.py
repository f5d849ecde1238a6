"""A real Celery process builds exports and closes statements; lost and doubled messages change nothing."""

import asyncio
import csv
import hashlib
import io
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from millpond_billing.background.work import build_one_export
from millpond_billing.domain.periods import Calendar
from millpond_billing.domain.timeline import instant_of, moment_of
from millpond_billing.store.exports import get_export, insert_export
from millpond_billing.store.tenants import save_tenant
from millpond_billing.usecases.periods import find_period
from millpond_contracts.bodies.bills import ExportFormat, ExportState
from millpond_contracts.ids import ExportId
from millpond_kernel.background import ANSWER_SECONDS, make_enqueue
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.doorbell import connect_redis
from millpond_kernel.settings import ServiceSettings
from tests.integration.billing.stage import Stage, allocation, running_stage, share, states_of, tenant_view
from tests.integration.databases import MigratedDatabase
from tests.integration.services import Caller
from tests.waiting import eventually

pytestmark = pytest.mark.integration

FEBRUARY = "2024-01-31T16:00:00Z"


@asynccontextmanager
async def celery_running(stage: Stage, folder: Path) -> AsyncIterator[None]:
    """A Celery worker of billing as the stack starts it."""
    settings = stage.services.settings["billing"]
    environment = {
        **os.environ,
        "MILLPOND_BILLING_DATABASE_URL": settings.database_url.get_secret_value(),
        "MILLPOND_REDIS_URL": settings.redis_url.get_secret_value(),
        "MILLPOND_REDIS_PREFIX": settings.redis_prefix,
        "MILLPOND_BILLING_EXPORT_FOLDER": str(folder),
    }
    options = ("--pool", "solo", "--loglevel", "warning", "--without-gossip", "--without-mingle", "--without-heartbeat")
    command = ("-m", "celery", "-A", "millpond_billing.celery_app", "worker", *options)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 20)
        except TimeoutError:
            process.kill()
            await process.wait()


async def export_state(caller: Caller, export_id: str) -> dict[str, Any]:
    return dict((await caller("GET", f"/v1/exports/{export_id}", expect=200)).json())


async def test_export_and_statement_when_a_real_worker_runs_then_ready_closed_and_equal_to_the_charges(
    stage: Stage, tmp_path: Path
) -> None:
    tenant, caller = await stage.tenant("acme")
    held = [allocation(tenant, devices=(share(250),), job_name=name) for name in ("train", "=cmd()", "-1+2", "a,b")]
    for one in held:
        await stage.tell(*states_of(one))
    made = (await caller("POST", "/v1/exports", {"period_start": FEBRUARY}, expect=202)).json()
    assert made["state"] == "queued"
    early = await caller("GET", f"/v1/exports/{made['export_id']}/content")
    assert (early.status_code, early.json()["code"]) == (409, "billing.export.not_ready")

    async with celery_running(stage, tmp_path / "exports"):

        async def ready() -> dict[str, Any] | None:
            found = await export_state(caller, made["export_id"])
            return found if found["state"] == "ready" else None

        async def closed() -> dict[str, Any] | None:
            found = (await caller("GET", f"/v1/statements/current?period_start={FEBRUARY}", expect=200)).json()
            return dict(found) if found["state"] == "closed" else None

        built = await eventually(ready, 60)
        statement = await eventually(closed, 60)

    charges = await stage.list_all(caller, f"/v1/charges?period_start={FEBRUARY}")
    content = await caller("GET", f"/v1/exports/{made['export_id']}/content", expect=200)
    assert hashlib.sha256(content.content).hexdigest() == built["digest"]
    assert (len(content.content), built["rows"]) == (built["bytes"], len(charges))
    rows = list(csv.DictReader(io.StringIO(content.text)))
    assert [(row["segment_id"], row["kind"], row["amount"]) for row in rows] == [
        (one["segment_id"], one["kind"], one["amount"]["amount"]) for one in charges
    ]
    assert {row["job_name"] for row in rows} == {"train", "'=cmd()", "'-1+2", "a,b"}
    owed = sum(Decimal(row["amount"]) for row in rows)
    assert owed + Decimal(statement["subtotals"]["rounding"]["amount"]) == Decimal(statement["total"]["amount"])
    await assert_resumes(caller, made["export_id"], content.content, built["digest"])


async def assert_resumes(caller: Caller, export_id: str, whole: bytes, digest: str) -> None:
    """A part can be asked for, and only of the file that was begun."""
    path = f"/v1/exports/{export_id}/content"
    rest = await caller("GET", path, headers={"Range": "bytes=100-", "If-Range": f'"{digest}"'}, expect=206)
    assert rest.content == whole[100:]
    assert rest.headers["etag"] == f'"{digest}"'
    other = await caller("GET", path, headers={"Range": "bytes=100-", "If-Range": '"another"'}, expect=200)
    assert other.content == whole
    assert (await caller("GET", path, headers={"Range": f"bytes={len(whole)}-"})).status_code == 416


async def lose_messages(settings: ServiceSettings) -> int:
    """Deletes what this test's broker holds; how many keys."""
    redis = connect_redis(settings.redis_url.get_secret_value())
    keys = [key async for key in redis.scan_iter(f"{settings.redis_prefix}:celery:*")]
    deleted = await redis.delete(*keys)
    await redis.aclose()
    return int(deleted)


async def test_celery_5935_when_messages_are_lost_or_doubled_then_handed_out_again_and_one_effect(
    migrated: MigratedDatabase, tmp_path: Path
) -> None:
    folder = tmp_path / "exports"
    # Lately: every ended period is a message a second until it is closed, and 30 of them are only waited for.
    used_at = datetime.now(UTC) - timedelta(days=40)
    period = Calendar.of("Asia/Shanghai").period_at(instant_of(used_at))
    spec = {"period_start": moment_of(period.start).isoformat()}
    async with running_stage(migrated, export_folder=folder, overdue_seconds=1) as stage:
        tenant, caller = await stage.tenant("acme")
        used = allocation(tenant, bound_at=used_at, active_at=used_at, released_at=used_at + timedelta(seconds=100))
        await stage.tell(*states_of(used))
        made = (await caller("POST", "/v1/exports", spec, expect=202)).json()["export_id"]
        settings = stage.services.settings["billing"]

        async def queued() -> int:
            return await stage.count("statement WHERE state = 'queued'")

        assert await eventually(queued)
        # The broker loses every message; the rows are still there.
        assert await lose_messages(settings) > 0
        enqueue = make_enqueue("billing", settings.redis_url.get_secret_value(), settings.redis_prefix)
        async with celery_running(stage, folder):

            async def ready() -> bool:
                return bool((await export_state(caller, made))["state"] == "ready")

            await eventually(ready, 60)
            before = await export_state(caller, made)
            for _ in range(3):
                await enqueue("export", made)
            await enqueue("export", "not an id")
            last = (await caller("POST", "/v1/exports", spec, expect=202)).json()["export_id"]

            async def last_ready() -> bool:
                return bool((await export_state(caller, last))["state"] == "ready")

            # One worker takes messages in order, so the doubled ones were before.
            await eventually(last_ready, 60)

            async def all_closed() -> bool:
                return await stage.count("statement WHERE state <> 'closed' AND period_end < now()") == 0

            await eventually(all_closed, 60)
        assert await export_state(caller, made) == before
        assert sorted(path.name for path in folder.iterdir()) == sorted([f"{made}.csv", f"{last}.csv"])


async def test_export_when_two_workers_take_it_then_one_builds_and_a_failure_is_told(
    stage: Stage, tmp_path: Path
) -> None:
    tenant, caller = await stage.tenant("acme")
    await stage.tell(*states_of(allocation(tenant)))
    made = (await caller("POST", "/v1/exports", {"period_start": FEBRUARY}, expect=202)).json()["export_id"]
    key, folder = ExportId.parse(made), tmp_path / "twice"
    database = stage.migrated.database("billing")
    await database.open()
    try:
        built = await asyncio.gather(*(build_one_export(database, key, folder) for _ in range(4)))
        assert sorted(built) == [False, False, False, True]
        broken = (await caller("POST", "/v1/exports", {"period_start": FEBRUARY}, expect=202)).json()["export_id"]
        (tmp_path / "file").touch()
        await build_one_export(database, ExportId.parse(broken), tmp_path / "file" / "below")
    finally:
        await database.close()
    failed = await export_state(caller, broken)
    assert failed["state"] == "failed"
    assert failed["error"] == "The file could not be written: Not a directory."


async def test_export_when_the_zone_changes_before_it_is_built_then_has_the_period_that_was_asked_for(
    database: Database, tmp_path: Path
) -> None:
    tenant, now = tenant_view(), datetime.now(UTC)
    async with database.begin(SYSTEM) as unit:
        await save_tenant(unit, tenant)
        # Nothing was used, so no period is kept.
        period = await find_period(unit, tenant, None, now)
        start, end = moment_of(period.start), moment_of(period.end)
        made = await insert_export(unit, tenant.tenant_id, ExportFormat.CSV, start, end)
        await save_tenant(unit, tenant.model_copy(update={"timezone": "America/New_York", "generation": 2}))
    assert await build_one_export(database, made.export_id, tmp_path)
    async with database.begin(SYSTEM) as unit:
        built = await get_export(unit, made.export_id)
    assert (built.state, built.rows, built.period_start) == (ExportState.READY, 0, start)


async def test_enqueue_when_the_broker_is_silent_then_gives_up_soon() -> None:
    asked: list[bytes] = []

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        enqueue = make_enqueue("billing", f"redis://127.0.0.1:{port}/0", "silent")
        async with asyncio.timeout(10 * ANSWER_SECONDS):
            await enqueue("export", str(ExportId.new()))
    assert asked
    assert b"" not in asked
