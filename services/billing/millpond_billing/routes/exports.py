"""`/v1/exports`: charges of a period as a file, built in the background."""

from datetime import datetime

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from millpond_billing.domain.timeline import moment_of
from millpond_billing.routes.access import kernel_of, tenant_filter, wanted_tenant
from millpond_billing.routes.downloads import Download, answer
from millpond_billing.store import exports as rows_of_exports
from millpond_billing.store.tenants import get_tenant
from millpond_billing.usecases.exports import export_file
from millpond_billing.usecases.periods import find_period
from millpond_contracts.bodies.bills import ExportFormat, ExportSpec, ExportState, ExportView
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import ExportId, TenantId
from millpond_kernel.auth import ReaderCaller
from millpond_kernel.idempotency import IdempotencyKey, run_idempotent
from millpond_kernel.pagination import Paging, make_page
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork

router = APIRouter(prefix="/v1/exports", tags=["exports"])

_MEDIA_TYPES = {ExportFormat.CSV: "text/csv", ExportFormat.JSONL: "application/x-ndjson"}
_CONTENT = {media_type: {"schema": {"type": "string"}} for media_type in _MEDIA_TYPES.values()}


@router.post("", status_code=202, response_model=ExportView)
async def create_export(request: Request, spec: ExportSpec, caller: ReaderCaller, key: IdempotencyKey) -> Response:
    """Queues an export; read it until its state is `ready`, then fetch its content."""
    kernel = kernel_of(request)
    now = await kernel.database.now()
    response = await run_idempotent(
        request,
        kernel.database,
        caller,
        key,
        lambda unit: _queue(unit, caller, spec, now),
        status=202,
        location=lambda made: f"/v1/exports/{made.export_id}",
    )
    await request.app.state.enqueue("export", str(ExportView.model_validate_json(bytes(response.body)).export_id))
    return response


async def _queue(unit: UnitOfWork, caller: Principal, spec: ExportSpec, now: datetime) -> ExportView:
    tenant = await get_tenant(unit, wanted_tenant(caller, spec.tenant_id))
    period = await find_period(unit, tenant, spec.period_start, now)
    return await rows_of_exports.insert_export(
        unit, tenant.tenant_id, spec.format, moment_of(period.start), moment_of(period.end)
    )


@router.get("")
async def list_exports(
    request: Request, caller: ReaderCaller, paging: Paging, tenant_id: TenantId | None = None
) -> Page[ExportView]:
    """Lists exports."""
    async with kernel_of(request).database.begin(caller.scope) as unit:
        rows = await rows_of_exports.list_exports(
            unit, paging.after_uuid(), paging.limit + 1, tenant_filter(caller, tenant_id)
        )
    return make_page(rows, paging, rows_of_exports.export_view, lambda row: ExportId.of(row["id"]))


@router.get("/{export_id}")
async def get_export(request: Request, export_id: ExportId, caller: ReaderCaller) -> ExportView:
    """One export and how far it is."""
    async with kernel_of(request).database.begin(caller.scope) as unit:
        return await rows_of_exports.get_export(unit, export_id)


@router.get(
    "/{export_id}/content",
    name="read_export_content",
    response_class=StreamingResponse,
    responses={200: {"content": _CONTENT}, 206: {"content": _CONTENT, "description": "The part asked for by Range"}},
)
async def read_content(request: Request, export_id: ExportId, caller: ReaderCaller) -> StreamingResponse:
    """The file. `Range` with `If-Range` resumes an interrupted download; `ETag` and `Repr-Digest` tell its SHA-256."""
    async with kernel_of(request).database.begin(caller.scope) as unit:
        view = await rows_of_exports.get_export(unit, export_id)
        now: datetime = await unit.fetchval("SELECT clock_timestamp()")
    if view.state is ExportState.EXPIRED or (view.expires_at is not None and view.expires_at <= now):
        raise ProblemError(ErrorCode.EXPORT_EXPIRED, "The file was kept long enough; create another export.")
    if view.state is not ExportState.READY:
        raise ProblemError(ErrorCode.EXPORT_NOT_READY, f"The export is {view.state.value}; ask again when it is ready.")
    file = export_file(request.app.state.export_folder, view)
    if not file.is_file():
        raise ProblemError(ErrorCode.EXPORT_EXPIRED, "The file of this export is gone; create another export.")
    assert view.digest is not None, "a ready export has a digest"
    return answer(request, Download(file, file.stat().st_size, view.digest, _MEDIA_TYPES[view.format]))
