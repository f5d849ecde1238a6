"""Money: price books, charges, statements, reports."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from millpond.client.calls import PAGE_LIMIT, create, get, get_page, next_page
from millpond.client.nouns import Noun
from millpond_contracts.bodies.bills import (
    ChargeGroup,
    ChargeKind,
    ChargeView,
    CostKey,
    CostReport,
    PriceVersionSpec,
    PriceVersionView,
    Reconciliation,
    StatementView,
)
from millpond_contracts.ids import JobId, NodeId, PoolId, PriceVersionId, ProjectId, StatementId, TenantId


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

    def lines(
        self, statement_id: StatementId, *, kind: ChargeKind | None = None, sku: str | None = None
    ) -> Iterator[ChargeView]:
        """The lines of a closed statement, in order of time; those of one `kind` add up to its subtotal."""
        return self._pages(get_page(f"/v1/statements/{statement_id}/lines", ChargeView, kind=kind, sku=sku))


class Charges(Noun):
    """`/v1/charges`."""

    def list(
        self,
        *,
        tenant_id: TenantId | None = None,
        job_id: JobId | None = None,
        project_id: ProjectId | None = None,
        period_start: datetime | None = None,
        kind: ChargeKind | None = None,
        sku: str | None = None,
    ) -> Iterator[ChargeView]:
        """The charges of a period up to now, in order of time; those of one `kind` add up to the subtotal of it."""
        filters = {"tenant_id": tenant_id, "job_id": job_id, "project_id": project_id, "kind": kind, "sku": sku}
        start = None if period_start is None else period_start.isoformat()
        return self._pages(get_page("/v1/charges", ChargeView, period_start=start, **filters))

    def sums(
        self,
        group_by: Sequence[str] = (),
        *,
        tenant_id: TenantId | None = None,
        period_start: datetime | None = None,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        project_id: ProjectId | None = None,
        job_id: JobId | None = None,
        pool_id: PoolId | None = None,
        flavor: str | None = None,
        labels: Sequence[str] = (),
    ) -> Iterator[ChargeGroup]:
        """Exact sums of charges in groups.

        Args:
            group_by: Any of `tenant`, `project`, `job`, `pool`, `node`, `resource`, `flavor`, `label:KEY`, and one of
                `hour`, `day`, `month` in the tenant's zone; none = one sum.
            tenant_id: Whose; an operator who names none sums all tenants.
            period_start: Of a tenant's period; None = the present one, unless `start_at` is given.
            start_at: Instead of a period: from this instant to `end_at`, which is now unless given.
            labels: `KEY=VALUE` or `KEY`; all must hold.
        """
        filters = {"tenant_id": tenant_id, "project_id": project_id, "job_id": job_id, "pool_id": pool_id}
        times = {"period_start": period_start, "start_at": start_at, "end_at": end_at}
        moments = {name: None if at is None else at.isoformat() for name, at in times.items()}
        several = {"group_by": tuple(group_by), "label": tuple(labels)}
        return self._pages(get_page("/v1/charges/sums", ChargeGroup, flavor=flavor, **several, **filters, **moments))


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


class Reports(Noun):
    """`/v1/reports`."""

    def cost(
        self,
        group_by: CostKey = CostKey.JOB,
        *,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        tenant_id: TenantId | None = None,
    ) -> CostReport:
        """What jobs, projects, tenants or pools cost, all of them; for operators the whole fleet beside it.

        Args:
            start_at: None = a day before the end.
            end_at: None = now.
            tenant_id: Of one tenant, without the fleet.
        """
        query = {
            "group_by": group_by,
            "start_at": None if start_at is None else start_at.isoformat(),
            "end_at": None if end_at is None else end_at.isoformat(),
            "tenant_id": tenant_id,
        }
        call = get("/v1/reports/cost", CostReport, limit=PAGE_LIMIT, **query)
        report = page = self._send(call)
        items = list(page.items)
        while page.next_cursor is not None:
            page = self._send(next_page(call, page.next_cursor))
            items += page.items
        return report.model_copy(update={"items": items, "next_cursor": None})
