"""One HTTP request to the control plane, and what its failures mean to an agent."""

import email.utils
import ipaddress
from datetime import datetime
from http import HTTPStatus
from ssl import SSLContext
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from millpond_contracts.bodies.shapes import Problem
from millpond_contracts.errors import ErrorCode
from millpond_node_agent.backoff import Outage
from millpond_node_agent.settings import VERSION

Answer = TypeVar("Answer", bound=BaseModel)

_LATER = frozenset({429, 500, 502, 503, 504})
# Answers of whatever stands in front of a service, or of a first request that still runs: nothing was decided.
_UNDECIDED = frozenset({ErrorCode.ROUTE_NOT_FOUND.value, ErrorCode.IDEMPOTENCY_KEY_IN_FLIGHT.value})
_LONGEST_RETRY_AFTER_SECONDS = 5.0
_CONNECT_SECONDS = 5.0
READ_SECONDS = 15.0


class Away(Exception):
    """No answer, or one that says 'later'; nothing is known about the request's effect."""

    def __init__(self, reason: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_seconds = retry_after_seconds


class Refused(Exception):
    """The control plane decided against the request; repeating it changes nothing."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail


class Superseded(Exception):
    """A newer session of this node exists: another agent with this identity runs somewhere."""


class BadAddress(ValueError):
    """The control plane's URL cannot be used."""


class HttpClient:
    """Requests to one base URL over kept connections."""

    def __init__(
        self, url: str, transport: httpx.AsyncBaseTransport | None = None, tls: SSLContext | None = None
    ) -> None:
        """Prepare; nothing is connected yet. `transport` None = the network, `tls` None = a context of its own.

        Raises:
            BadAddress: not an http or https URL.
        """
        self._url = check_url(url)
        self._transport = transport
        self._tls = tls or httpx.create_ssl_context()
        self._outages = {service: Outage(service) for service in ("registry", "scheduler")}
        self._http = httpx.AsyncClient(
            base_url=self._url,
            transport=transport,
            verify=self._tls,
            headers={"user-agent": f"millpond-node-agent/{VERSION}", "content-type": "application/json"},
            limits=httpx.Limits(max_connections=32, max_keepalive_connections=8, keepalive_expiry=60.0),
            # A proxy meant for the outside must not be asked about this machine itself.
            trust_env=not _is_loopback(url),
        )

    def sibling(self) -> "HttpClient":
        """Another client to the same address, with connections of its own.

        Every request looks at all connections of its client, so hundreds of nodes cannot share one; making the TLS
        context costs more than all else, and one outage is one event, so these are shared.
        """
        other = HttpClient(self._url, self._transport, self._tls)
        other._outages = self._outages
        return other

    async def send(
        self,
        service: str,
        path: str,
        body: BaseModel,
        answer: type[Answer],
        *,
        method: str = "POST",
        headers: dict[str, str] | None = None,
        read_seconds: float = READ_SECONDS,
    ) -> tuple[Answer, datetime | None]:
        """The answer to `body`, and the server's time by its Date header.

        Raises:
            Away: no answer, or one that says 'later'.
            Refused: the service decided against it.
            Superseded: a newer session of this node exists.
        """
        try:
            response = await self._http.request(
                method,
                path,
                content=body.model_dump_json(),
                headers=headers,
                timeout=httpx.Timeout(_CONNECT_SECONDS, read=read_seconds),
            )
            parsed = _parse(response, answer)
        except (httpx.TransportError, Away) as error:
            away = error if isinstance(error, Away) else Away(f"{type(error).__name__}: {error}".rstrip(": "))
            self._outages[service].failed(str(away))
            raise away from error
        except Refused:
            self._outages[service].answered()
            raise
        self._outages[service].answered()
        return parsed, _date(response)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def check_url(url: str) -> str:
    """The base URL without a trailing slash.

    Raises:
        BadAddress: not an http or https URL with a host.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadAddress(f"expected the control plane's address such as http://10.0.0.5:7070, found {url[:80]!r}")
    return url.rstrip("/")


def _parse(response: httpx.Response, answer: type[Answer]) -> Answer:
    if response.is_success:
        try:
            return answer.model_validate_json(response.content or b"{}")
        except ValidationError as error:
            # Something else answers at this address, such as a captive portal.
            raise Away(
                f"the answer of {response.url.path} is not what was expected: {error.errors()[0]['msg']}"
            ) from None
    problem = _problem(response)
    if response.status_code in _LATER or problem is None or problem.code in _UNDECIDED:
        detail = problem.detail if problem is not None else HTTPStatus(response.status_code).phrase
        raise Away(f"{response.status_code}: {detail}", _retry_after(response))
    if problem.code == ErrorCode.NODE_SUPERSEDED:
        raise Superseded(problem.detail)
    raise Refused(response.status_code, problem.code, problem.detail)


def _problem(response: httpx.Response) -> Problem | None:
    try:
        return Problem.model_validate_json(response.content)
    except ValidationError:
        return None


def _retry_after(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return min(float(text), _LONGEST_RETRY_AFTER_SECONDS) if text.isdigit() else 0.0


def _date(response: httpx.Response) -> datetime | None:
    try:
        return email.utils.parsedate_to_datetime(response.headers.get("date", ""))
    except ValueError:
        return None


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
