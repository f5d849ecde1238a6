"""HTTP calls from one service to another. Refused while the task holds a transaction."""

from collections.abc import Mapping
from typing import Any

import httpx

from millpond_contracts.errors import ErrorCode
from millpond_kernel.observability import current_request_id
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWorkOpen, unit_of_work_open


class ServiceAway(Exception):
    """The other service did not answer, or answered with a server error."""


class ServiceClient:
    """Calls one service with this service's own key. `transport` lets tests answer in process."""

    def __init__(
        self, name: str, base_url: str, key: str, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.name = name
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(
            base_url=base_url,
            headers=headers,
            timeout=httpx.Timeout(10, connect=2),
            transport=transport,
            # A proxy of the environment is for the outside; services reach one another directly.
            trust_env=False,
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        json: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """The answer, whatever its status below 500.

        Raises:
            ServiceAway: no answer, or a status of 500 and above.
            UnitOfWorkOpen: the task holds a transaction.
        """
        if unit_of_work_open():
            raise UnitOfWorkOpen(f"{method} {path} on {self.name}: no network call inside a transaction")
        request_id = current_request_id()
        sent = {"X-Request-Id": request_id, **(headers or {})} if request_id else dict(headers or {})
        try:
            response = await self._client.request(method, path, params=dict(params or {}), json=json, headers=sent)
        except httpx.HTTPError as error:
            raise ServiceAway(f"{self.name} does not answer: {type(error).__name__}") from error
        if response.status_code >= 500:
            raise ServiceAway(f"{self.name} answered {response.status_code}")
        return response

    async def get_json(self, path: str, params: Mapping[str, str | int] | None = None) -> Any:
        """The JSON of a successful GET.

        Raises:
            ServiceAway: also when the status is not 200, or the answer is not JSON.
        """
        response = await self.request("GET", path, params=params)
        if response.status_code != 200:
            raise ServiceAway(f"{self.name} answered {response.status_code} to GET {path}")
        return json_of(response)


def json_of(response: httpx.Response) -> Any:
    """The JSON of an answer.

    Raises:
        ServiceAway: something else was sent, for example by a proxy.
    """
    try:
        return response.json()
    except ValueError as error:
        raise ServiceAway(f"{response.request.url.path} was not answered in JSON") from error


def away_problem(error: ServiceAway) -> ProblemError:
    """The problem a caller gets when this request needs a service that is away."""
    return ProblemError(ErrorCode.DEPENDENCY_AWAY, f"{error}. Nothing was changed; try again.", retry_after_seconds=2)
