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
    PriceBookView,
    PriceVersionSpec,
    PriceVersionView,
    StatementView,
)
from millpond_contracts.ids import ExportId, JobId, PriceBookId, StatementId, TenantId


class PriceBooks(Noun):
    """`/v1/price-books`."""

    def list(self) -> Iterator[PriceBookView]:
        """The public list and the tenants' own books."""
        return self._pages(get_page("/v1/price-books", PriceBookView))

    def publish(self, spec: PriceVersionSpec) -> PriceVersionView:
        """Publishes prices, in force until the next version."""
        return self._send(create("/v1/price-books/versions", spec, PriceVersionView))

    def versions(self, *, price_book_id: PriceBookId | None = None) -> Iterator[PriceVersionView]:
        """Immutable versions of price books."""
        return self._pages(get_page("/v1/price-books/versions", PriceVersionView, price_book_id=price_book_id))


class Statements(Noun):
    """`/v1/statements`."""

    def list(self, *, tenant_id: TenantId | None = None) -> Iterator[StatementView]:
        """Closed statements and the draft of the present period."""
        return self._pages(get_page("/v1/statements", StatementView, tenant_id=tenant_id))

    def get(self, statement_id: StatementId) -> StatementView:
        """One closed statement."""
        return self._send(get(f"/v1/statements/{statement_id}", StatementView))

    def current(self, *, tenant_id: TenantId | None = None, period_start: datetime | None = None) -> StatementView:
        """What a tenant owes for a period as of now; by default the present one."""
        query = {"tenant_id": tenant_id, "period_start": None if period_start is None else period_start.isoformat()}
        return self._send(get("/v1/statements/current", StatementView, **query))


class Charges(Noun):
    """`/v1/charges`."""

    def list(
        self,
        *,
        tenant_id: TenantId | None = None,
        job_id: JobId | None = None,
        period_start: datetime | None = None,
    ) -> Iterator[ChargeView]:
        """The lines behind a statement."""
        start = None if period_start is None else period_start.isoformat()
        return self._pages(get_page("/v1/charges", ChargeView, tenant_id=tenant_id, job_id=job_id, period_start=start))


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
        return self._send(get_text(f"/v1/exports/{export_id}/download"))

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
