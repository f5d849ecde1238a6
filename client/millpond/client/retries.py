"""When a request is sent again, and after which delay; a pure decision."""

import random
from dataclasses import dataclass

import httpx

from millpond.client.calls import Answer, Call
from millpond_contracts.errors import ErrorCode

# The request was never sent, so repeating it is safe whatever it does.
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_AGAIN = (429, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Doubling delays with jitter; a server's Retry-After wins, up to `longest_delay_seconds`."""

    attempts: int = 6
    first_delay_seconds: float = 0.2
    longest_delay_seconds: float = 10.0

    def delay_seconds(self, attempt: int) -> float:
        """The delay after the `attempt`-th try (1 = the first), half of it random."""
        whole = min(self.first_delay_seconds * 2.0 ** (attempt - 1), self.longest_delay_seconds)
        return whole * random.uniform(0.5, 1.0)


def delay_after_error(policy: RetryPolicy, call: Call[Answer], attempt: int, error: httpx.RequestError) -> float | None:
    """Seconds until the call is sent again after a broken connection; None = give up."""
    is_hopeless = isinstance(error, httpx.UnsupportedProtocol | httpx.TooManyRedirects)
    if is_hopeless or attempt >= policy.attempts or not (call.is_repeatable or isinstance(error, NOT_SENT)):
        return None
    return policy.delay_seconds(attempt)


def delay_after_answer(policy: RetryPolicy, call: Call[Answer], attempt: int, response: httpx.Response) -> float | None:
    """Seconds until the call is sent again after this answer; None = it is final.

    429 and 503 say that nothing was changed; a gateway's 502 and 504 do not. A 409 "in flight" means that an earlier
    sending of this very call still runs.
    """
    status = response.status_code
    if status == 409:
        is_wanted = _code(response) == ErrorCode.IDEMPOTENCY_KEY_IN_FLIGHT
    else:
        is_wanted = status in _AGAIN and (call.is_repeatable or status in (429, 503))
    if not is_wanted or attempt >= policy.attempts:
        return None
    told = response.headers.get("retry-after", "")
    if told.isdigit():
        return min(float(told), policy.longest_delay_seconds)
    return policy.delay_seconds(attempt)


def _code(response: httpx.Response) -> object:
    try:
        return response.json().get("code")
    except (ValueError, AttributeError):
        return None
