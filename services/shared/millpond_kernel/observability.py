"""Structured logs, request ids and metrics. Nothing secret is passed here: no key, token, command, environment."""

import logging
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import structlog
from prometheus_client import Counter, Gauge, Histogram

log: structlog.stdlib.BoundLogger = structlog.get_logger("millpond")

# From the mark to the next mark or to the end of this exception's text.
_DETAIL = re.compile(r"^(DETAIL|CONTEXT):.*?(?=^[A-Z]+:|^Traceback|^The above|^During|\Z)", re.MULTILINE | re.DOTALL)

_request_id: ContextVar[str | None] = ContextVar("millpond_request_id", default=None)

REQUESTS = Counter("millpond_http_requests_total", "HTTP requests", ("service", "method", "route", "status"))
REQUEST_SECONDS = Histogram(
    "millpond_http_request_seconds",
    "Time to answer",
    ("service", "method", "route"),
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
REQUESTS_LIMITED = Counter("millpond_tenant_requests_limited_total", "Requests over their tenant's rate", ("service",))
EVENTS_PUBLISHED = Counter("millpond_events_published_total", "Events given to Redis", ("service",))
EVENTS_APPLIED = Counter("millpond_events_applied_total", "Events applied", ("service", "consumer", "publisher"))
EVENTS_PARKED = Counter("millpond_events_parked_total", "Events parked after failing", ("service", "consumer"))
FEED_READS = Counter("millpond_feed_reads_total", "Reads of a publisher's feed", ("service", "consumer", "publisher"))
CONSUMER_LAG = Gauge("millpond_consumer_lag_events", "Events not yet applied", ("service", "consumer", "publisher"))
UNPUBLISHED = Gauge("millpond_outbox_unpublished_events", "Outbox rows without a sequence", ("service",))
LOOP_PASSES = Counter("millpond_loop_passes_total", "Passes of control loops", ("service", "loop", "outcome"))
LOOP_SECONDS = Histogram("millpond_loop_pass_seconds", "Duration of a pass", ("service", "loop"))
LEADER = Gauge("millpond_lease_held", "1 while this process holds the lease", ("service", "lease"))
ALARMS = Counter("millpond_alarms_total", "Findings that a person must look at", ("service", "kind"))


class RequestComplaint:
    """A warning that any request may cause: said at most once in `seconds`, with how often it was held back since."""

    def __init__(self, event: str, seconds: float = 1.0) -> None:
        self._event = event
        self._seconds = seconds
        self._said_at: float | None = None
        self._held_back = 0

    def say(self, **facts: object) -> None:
        """Says it, or counts it for the next time."""
        now = time.monotonic()
        if self._said_at is not None and now - self._said_at < self._seconds:
            self._held_back += 1
            return
        log.warning(self._event, held_back=self._held_back, **facts)
        self._said_at, self._held_back = now, 0


def current_request_id() -> str | None:
    """The id of the request being served, if any."""
    return _request_id.get()


@contextmanager
def bound_request_id(request_id: str) -> Iterator[None]:
    """Binds the request id for logs and problems of this task, for the time of the block."""
    token = _request_id.set(request_id)
    try:
        yield
    finally:
        _request_id.reset(token)


def _add_request_id(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    request_id = _request_id.get()
    if request_id is not None:
        event.setdefault("request_id", request_id)
    return event


def _hide_values(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """PostgreSQL tells the failing row in an error's detail; a row may hold a tenant's command or environment."""
    if isinstance(event.get("exception"), str):
        event["exception"] = _DETAIL.sub(r"\1: hidden\n", event["exception"])
    return event


def configure_logging(level: str, log_format: str) -> None:
    """Sends all logs to standard error, as JSON lines or in colour for a person."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if log_format == "json" else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _add_request_id,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _hide_values,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    # It tells of a database that is away with a whole traceback each time; whoever waits for it says so in a line.
    logging.getLogger("asyncpg.pool").setLevel(logging.CRITICAL)
