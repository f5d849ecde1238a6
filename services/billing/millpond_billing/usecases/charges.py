"""Charges as people read them: the lines behind every figure, exact, with what explains them."""

from collections.abc import Iterable, Iterator

from millpond_billing.domain.rating import Charge, charges_of
from millpond_billing.domain.timeline import moment_of
from millpond_billing.usecases.metering import MeteredSegment
from millpond_contracts.bodies.bills import ChargeView
from millpond_contracts.ids import JobId, ProjectId
from millpond_contracts.prices import SMALLEST_PER_UNIT
from millpond_contracts.quantities import ExactDecimal, Money


def charge_views(
    segments: Iterable[MeteredSegment], job_id: JobId | None = None, project_id: ProjectId | None = None
) -> list[ChargeView]:
    """The charges of these segments in order of time, of one job or project when named."""
    wanted = (
        one
        for one in sorted(segments, key=lambda one: (one.rated.segment.start, one.rated.segment.allocation_id))
        if (job_id is None or one.allocation.job_id == job_id)
        and (project_id is None or one.allocation.project_id == project_id)
    )
    return [view for one in wanted for view in _views(one)]


def _views(one: MeteredSegment) -> Iterator[ChargeView]:
    for charge in charges_of(one.rated):
        yield _view(one, charge)


def _view(one: MeteredSegment, charge: Charge) -> ChargeView:
    segment, allocation = one.rated.segment, one.allocation
    per_unit = SMALLEST_PER_UNIT[segment.sku.resource]
    return ChargeView(
        segment_id=one.segment_id,
        allocation_id=segment.allocation_id,
        job_id=allocation.job_id,
        job_name=allocation.job_name,
        project_id=allocation.project_id,
        pool_id=allocation.pool_id,
        node_id=allocation.node_id,
        kind=charge.kind,
        sku=str(segment.sku),
        # Whole units divide exactly: a thousandth and a 1024th have finite decimals.
        quantity=ExactDecimal(ExactDecimal(segment.amount) / per_unit),
        seconds=charge.seconds,
        per_hour=ExactDecimal(charge.price.per_hour),
        start_at=moment_of(segment.start),
        end_at=moment_of(segment.end),
        amount=Money(amount=ExactDecimal(charge.amount), currency=charge.price.currency),
        price_version_id=charge.price.version_id,
    )


def csv_header() -> list[str]:
    """The columns of an export, in order."""
    return [
        "start_at",
        "end_at",
        "kind",
        "sku",
        "quantity",
        "seconds",
        "per_hour",
        "amount",
        "currency",
        "job_id",
        "job_name",
        "project_id",
        "allocation_id",
        "pool_id",
        "node_id",
        "segment_id",
        "price_version_id",
    ]


def csv_row(view: ChargeView) -> list[str]:
    """One charge as an export writes it; an absent value is empty."""
    document = view.model_dump(mode="json")
    flat = {**document, "amount": document["amount"]["amount"], "currency": document["amount"]["currency"]}
    return ["" if flat[column] is None else str(flat[column]) for column in csv_header()]
