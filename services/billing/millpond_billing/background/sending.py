"""Hands a row's id to Celery. A message that cannot be sent is only late: what is overdue is handed out again."""

from collections.abc import Callable

from celery import Celery
from kombu.exceptions import OperationalError

from millpond_kernel.observability import log


def make_enqueue(app: Celery) -> Callable[[str, str], None]:
    """(kind, id) -> a message for the task `billing.<kind>`."""

    def enqueue(kind: str, row_id: str) -> None:
        try:
            app.send_task(f"billing.{kind}", (row_id,), retry=False)
        except (OperationalError, OSError) as error:
            log.warning("not_enqueued", kind=kind, id=row_id, error=type(error).__name__)

    return enqueue
