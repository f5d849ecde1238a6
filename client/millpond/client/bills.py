"""Money: price books, charges, statements, exports."""

import time
from collections.abc import Iterator
from datetime import datetime

from millpond.client.calls import create, get, get_page, get_text
from millpond.client.errors import MillpondError, WaitTimeout
from millpond.client.nouns import Noun
from millpond_contracts.bodies.bills import (
    ChargeView,
    ExportSpec,
    ExportState,
    ExportView,
    PriceVersionSpec,
    PriceVersionView,
    Reconciliation,
    StatementView,
)
from millpond_contracts.ids import ExportId, JobId, NodeId, PriceVersionId, ProjectId, StatementId, TenantId


class PriceBooks(Noun):
    """`/v1/price-books`: versions that never change."""

    def publish(self, spec: PriceVersionSpec) -> PriceVersionView:
        """Publishes prices, in force until the next version."""
        return self._send(create("/v1/price-books", spec, PriceVersionView))

    def list(self) -> Iterator[PriceVersionView]:
        """The public versions and, for a tenant, its own."""
        return self._pages(get_page("/v1/price-books", PriceVersionView))

    def get(self, price_version_id: PriceVersionId) -> PriceVersionView:
        """One version."""
        return self._send(get(f"/v1/price-books/{price_version_id}", PriceVersionView))


class Statements(Noun):
    """`/v1/statements`."""

    def list(self, *, tenant_id: TenantId | None = None) -> Iterator[StatementView]:
        """Closed statements."""
        return self._pages(get_page("/v1/statements", StatementView, tenant_id=tenant_id))

    def get(self, statement_id: StatementId) -> StatementView:
        """One closed statement."""
        return self._send(get(f"/v1/statements/{statement_id}", StatementView))

    def current(self, *, tenant_id: TenantId | None = None, period_start: datetime | None = None) -> StatementView:
        """The statement of a period: closed when it is, else what is owed so far.

        Args:
            tenant_id: Whose; operators must say.
            period_start: Where the period starts, exactly; None = the present one.
        """
        query = {"tenant_id": tenant_id, "period_start": None if period_start is None else period_start.isoformat()}
        return self._send(get("/v1/statements/current", StatementView, **query))

    def lines(self, statement_id: StatementId) -> Iterator[ChargeView]:
        """The lines of a closed statement, in order of time."""
        return self._pages(get_page(f"/v1/statements/{statement_id}/lines", ChargeView))


class Charges(Noun):
    """`/v1/charges`."""

    def list(
        self,
        *,
        tenant_id: TenantId | None = None,
        job_id: JobId | None = None,
        project_id: ProjectId | None = None,
        period_start: datetime | None = None,
    ) -> Iterator[ChargeView]:
        """The charges of a period up to now, in order of time."""
        start = None if period_start is None else period_start.isoformat()
        return self._pages(get_page("/v1/charges", ChargeView, tenant_id=tenant_id, job_id=job_id, period_start=start))


class Reconciliations(Noun):
    """`/v1/reconciliations`."""

    def get(
        self,
        *,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        node_id: NodeId | None = None,
        tenant_id: TenantId | None = None,
    ) -> Reconciliation:
        """Where every node's time went over an interval; with a tenant, the check of its bill as well."""
        query = {
            "start_at": None if start_at is None else start_at.isoformat(),
            "end_at": None if end_at is None else end_at.isoformat(),
            "node_id": node_id,
            "tenant_id": tenant_id,
        }
        return self._send(get("/v1/reconciliations", Reconciliation, **query))


class Exports(Noun):
    """`/v1/exports`."""

    def create(self, spec: ExportSpec) -> ExportView:
        """Orders an export; it is built in the background."""
        return self._send(create("/v1/exports", spec, ExportView))

    def list(self, *, tenant_id: TenantId | None = None) -> Iterator[ExportView]:
        """Exports."""
        return self._pages(get_page("/v1/exports", ExportView, tenant_id=tenant_id))

    def get(self, export_id: ExportId) -> ExportView:
        """One export."""
        return self._send(get(f"/v1/exports/{export_id}", ExportView))

    def download(self, export_id: ExportId) -> str:
        """The text of an export that is ready."""
        return self._send(get_text(f"/v1/exports/{export_id}/content"))

    def wait(self, export_id: ExportId, *, timeout_seconds: float = 120.0) -> ExportView:
        """The export once it is ready.

        Raises:
            WaitTimeout: not in time.
            MillpondError: it failed.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            export = self.get(export_id)
            if export.state is ExportState.READY:
                return export
            if export.state is ExportState.FAILED:
                raise MillpondError(f"export {export_id} failed: {export.error}", code="client.export.failed")
            if time.monotonic() > deadline:
                raise WaitTimeout(f"export {export_id} is still {export.state}", code="client.wait.timeout")
            self._sender.sleep(0.3)
