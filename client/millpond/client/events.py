"""Watching a service's events as they happen, resumed by index after a broken connection; and its audit trail."""

from collections.abc import Iterator
from datetime import datetime

import httpx
from pydantic import BaseModel, ValidationError

from millpond.client.answers import ServiceHealth
from millpond.client.calls import get, get_page
from millpond.client.errors import MillpondError, error_of
from millpond.client.nouns import Noun
from millpond.client.sending import unreachable
from millpond.client.server_sent import EventReading
from millpond_contracts.bodies.audit import AuditView
from millpond_contracts.events import PUBLISHERS, Envelope

SERVICES = PUBLISHERS
_QUIET_SECONDS = 60.0


class _Ending(BaseModel):
    code: str
    detail: str


class Events(Noun):
    """`/v1/events/<service>`."""

    def watch(
        self, service: str, *, after: int | None = None, follow: bool = True, subject: str | None = None
    ) -> Iterator[Envelope]:
        """Events of a service.

        Args:
            service: `registry`, `quota`, `scheduler`, `billing` or `autoscaler`.
            after: Begin after this sequence; None = with what happens from now on.
            follow: Without it, the iterator ends with the newest event there is.
            subject: Only events of this object, by its id; then None = begin with the oldest one that is kept.

        Raises:
            MillpondError: the watch was refused, or the service stayed away.
        """
        failures = 0
        while True:
            try:
                for envelope in self._stream(service, after, follow, subject):
                    after, failures = envelope.seq, 0
                    yield envelope
                if not follow:
                    return
            except httpx.TransportError as error:
                failures += 1
                if failures > self._sender.policy.attempts:
                    raise unreachable(self._sender.http.base_url, error) from error
            self._sender.sleep(self._sender.policy.delay_seconds(max(failures, 1)))

    def _stream(self, service: str, after: int | None, follow: bool, subject: str | None) -> Iterator[Envelope]:
        query = {"follow": str(follow).lower()} | ({} if after is None else {"after": str(after)})
        query |= {} if subject is None else {"subject": subject}
        http, timeout = self._sender.http, httpx.Timeout(10.0, read=_QUIET_SECONDS)
        with http.stream("GET", f"/v1/events/{service}", params=query, timeout=timeout) as response:
            if response.status_code >= 400:
                response.read()
                raise error_of(response)
            reading = EventReading()
            for line in response.iter_lines():
                event = reading.take(line)
                if event is None:
                    continue
                if event.kind == "problem":
                    raise _ended(event.data)
                yield Envelope.model_validate_json(event.data)


class Audit(Noun):
    """`/v1/audit/<service>`."""

    def list(
        self,
        service: str,
        *,
        object_: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        newest_first: bool = False,
    ) -> Iterator[AuditView]:
        """Who did what, oldest first unless told otherwise.

        Args:
            service: `registry`, `quota`, `scheduler` or `billing`.
            object_: What it was done to: an id, or a name where that is the id.
            actor: Who did it: the id of an API key, or the actor as it is shown.
            action: Such as `job.submit`, or `job` for all that was done to jobs.
            since: From then on.
            until: Before then.
            newest_first: In the other order.
        """
        filters = {
            "object": object_,
            "actor": actor,
            "action": action,
            "since": since,
            "until": until,
            "newest_first": newest_first or None,
        }
        return self._pages(get_page(f"/v1/audit/{service}", AuditView, **filters))


class Health(Noun):
    """`/healthz/<service>`."""

    def get(self, service: str) -> ServiceHealth:
        """How a service is, with reasons."""
        return self._send(get(f"/healthz/{service}", ServiceHealth))


def _ended(data: str) -> MillpondError:
    try:
        problem = _Ending.model_validate_json(data)
    except ValidationError:
        return MillpondError(f"the watch was ended: {data[:300]}", code="client.watch.ended")
    return MillpondError(problem.detail, code=problem.code)
