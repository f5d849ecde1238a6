"""Hands a row's id to Celery. A message that cannot be sent is only late: what is overdue is handed out again.

Each service has a queue of its own, so that a worker is given only tasks that it knows; one may serve several.
"""

import asyncio
from collections.abc import Awaitable, Callable

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from millpond_kernel.db import Database
from millpond_kernel.observability import log
from millpond_kernel.settings import ServiceSettings

HARD_LIMIT_SECONDS = 600
ANSWER_SECONDS = 1.0


def make_celery(
    redis_url: str, redis_prefix: str, queue: str = "celery", *, answer_seconds: float | None = None
) -> Celery:
    """A Celery that only sends or also works; both ends agree on names, the queue and the broker's key prefix.

    Args:
        answer_seconds: how long the broker may take to answer; None = for ever, as a worker waits for its next message.
    """
    app = Celery("millpond", broker=redis_url)
    app.conf.update(
        task_default_queue=queue,
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


def make_enqueue(
    service: str, redis_url: str, redis_prefix: str, queue: str = "celery"
) -> Callable[[str, str], Awaitable[None]]:
    """(kind, id) -> a message for the task `<service>.<kind>`; an absent or silent broker holds nobody up for long."""
    app = make_celery(redis_url, redis_prefix, queue, answer_seconds=ANSWER_SECONDS)

    def send(kind: str, row_id: str) -> None:
        try:
            app.send_task(f"{service}.{kind}", (row_id,), retry=False)
        except (OperationalError, RedisError, OSError) as error:
            log.warning("not_enqueued", service=service, kind=kind, id=row_id, error=type(error).__name__)

    async def enqueue(kind: str, row_id: str) -> None:
        await asyncio.to_thread(send, kind, row_id)

    return enqueue


def with_database(settings: ServiceSettings, work: Callable[[Database], Awaitable[object]]) -> None:
    """Does a task's work with a database of the settings' service, and waits for its end."""

    async def run() -> None:
        database = Database(settings.service, settings.database_url.get_secret_value(), pool_size=2)
        await database.open(settings.database_wait_seconds)
        try:
            await work(database)
        finally:
            await database.close()

    asyncio.run(run())
