"""Hands a row's id to Celery. A message that cannot be sent is only late: what is overdue is handed out again."""

import asyncio
from collections.abc import Awaitable, Callable

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from millpond_kernel.observability import log

EXPORT_TASK = "billing.export"
FORGET_TASK = "billing.forget"
STATEMENT_TASK = "billing.statement"
HARD_LIMIT_SECONDS = 600
ANSWER_SECONDS = 1.0


def make_celery(redis_url: str, redis_prefix: str, *, answer_seconds: float | None = None) -> Celery:
    """A Celery that only sends or also works; both ends agree on names and on the broker's key prefix.

    Args:
        answer_seconds: how long the broker may take to answer; None = for ever, as a worker waits for its next message.
    """
    app = Celery("millpond_billing", broker=redis_url)
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        task_time_limit=HARD_LIMIT_SECONDS,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        broker_transport_options={
            "global_keyprefix": f"{redis_prefix}:celery:",
            # Longer than any task may run, so that nothing runs twice at a time.
            "visibility_timeout": 2 * HARD_LIMIT_SECONDS,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "socket_timeout": answer_seconds,
            "socket_connect_timeout": 2,
        },
    )
    return app


def make_enqueue(redis_url: str, redis_prefix: str) -> Callable[[str, str], Awaitable[None]]:
    """(kind, id) -> a message for the task `billing.<kind>`; an absent or silent broker holds nobody up for long."""
    app = make_celery(redis_url, redis_prefix, answer_seconds=ANSWER_SECONDS)

    def send(kind: str, row_id: str) -> None:
        try:
            app.send_task(f"billing.{kind}", (row_id,), retry=False)
        except (OperationalError, RedisError, OSError) as error:
            log.warning("not_enqueued", kind=kind, id=row_id, error=type(error).__name__)

    async def enqueue(kind: str, row_id: str) -> None:
        await asyncio.to_thread(send, kind, row_id)

    return enqueue
