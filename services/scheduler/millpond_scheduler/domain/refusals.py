"""Whether the limits let a task in, and the one reason why it does not start, with a count per node of its pool."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from millpond_scheduler.domain.admission import Balance
from millpond_scheduler.domain.apart import rows_of
from millpond_scheduler.domain.candidates import CandidateCache, Candidates
from millpond_scheduler.domain.columns import IntArray
from millpond_scheduler.domain.plans import AdmissionLine, Rejection
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.verdicts import Reason, decide_dominant


class Admission(NamedTuple):
    """Whether the limits let a task in, and if only with some flavors, the request narrowed to them."""

    request: RequestClass
    reason: Reason | None = None
    lines: tuple[AdmissionLine, ...] = ()


def admit(balance: Balance | None, candidates: Candidates) -> Admission:
    """Ask the limits on CPU, memory and every flavor that the hardware would allow.

    One flavor with room is enough; the request is then narrowed to those that have it.
    """
    request, wants = candidates.request, candidates.wants
    if balance is None:
        return Admission(request, Reason.NO_VIRTUAL_POOL)
    reason = balance.find_block(wants.base)
    if reason is None:
        blocks = [balance.find_block_of(each, amount) for each, amount in wants.any_of.items()]
        if not any(blocks):
            return Admission(request)
        left = frozenset(name for name, block in zip(wants.flavors, blocks, strict=True) if block is None)
        if left and request.devices is not None:
            return Admission(replace(request, devices=replace(request.devices, flavors=left)))
        reason = Reason.LIMIT_REACHED if Reason.LIMIT_REACHED in blocks else Reason.GUARANTEE_OF_OTHERS
    return Admission(request, reason, list_lines(balance, candidates))


def list_lines(balance: Balance, candidates: Candidates, tasks: int = 1) -> tuple[AdmissionLine, ...]:
    """Every limit that so many tasks meet: CPU, memory and each flavor that the hardware would allow."""
    wants = candidates.wants
    return tuple(balance.describe(resource, tasks * amount) for resource, amount in (wants.base | wants.any_of).items())


def decide_rejection(
    cache: CandidateCache,
    balance: Balance | None,
    request: RequestClass,
    kept_rows: Collection[int] = (),
    barred: Mapping[Reason, IntArray] = MappingProxyType({}),
) -> Rejection:
    """Say why a request does not start, with one count per node of its pool.

    A limit comes first where it alone stands between the task and a node with room.

    Args:
        kept_rows: rows that are kept for others.
        barred: rows that it may not use because of where other tasks stand, by why.
    """
    candidates = cache.get(request)
    admission = admit(balance, candidates)
    counts = candidates.count_reasons(kept_rows, barred)
    if balance is None or admission.reason is not None:
        return Rejection(admission.reason or Reason.NO_VIRTUAL_POOL, counts, admission.lines)
    lines: tuple[AdmissionLine, ...] = ()
    if admission.request is not request:
        lines = list_lines(balance, candidates)
        narrowed, closed = cache.get(admission.request), {*kept_rows, *rows_of(barred)}
        if Reason.PLACEABLE in counts and narrowed.find_best(closed) is None:
            return Rejection(Reason.LIMIT_REACHED, counts, lines)
    reason = decide_dominant(counts, unavailable_would_match=candidates.has_unavailable_match())
    return Rejection(reason, counts, lines)
