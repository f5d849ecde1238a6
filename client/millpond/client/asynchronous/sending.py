"""Sends calls over one asynchronous HTTP connection pool; what is decided about them is the same as in `sending`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx

from millpond.client.calls import Answer, Call, Model, next_page
from millpond.client.retries import RetryPolicy, delay_after_answer, delay_after_error
from millpond.client.sending import build_request, read_answer, unreachable
from millpond_contracts.bodies.shapes import Page

__all__ = ["Sender", "unreachable"]


class Sender:
    """The one place that does input and output; nouns only say what to send."""

    def __init__(
        self, http: httpx.AsyncClient, policy: RetryPolicy, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self.http = http
        self.policy = policy
        self.sleep = sleep

    async def send(self, call: Call[Answer]) -> Answer:
        """The answer to a call.

        Raises:
            MillpondError: refused, or no answer.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                response = await self.http.send(build_request(self.http, call))
            except httpx.RequestError as error:
                delay = delay_after_error(self.policy, call, attempt, error)
                if delay is None:
                    raise unreachable(self.http.base_url, error) from error
            else:
                delay = delay_after_answer(self.policy, call, attempt, response)
                if delay is None:
                    return read_answer(call, response)
            await self.sleep(delay)

    async def pages(self, call: Call[Page[Model]]) -> AsyncIterator[Model]:
        """All items of a list, page by page."""
        while True:
            page = await self.send(call)
            for item in page.items:
                yield item
            if page.next_cursor is None:
                return
            call = next_page(call, page.next_cursor)
