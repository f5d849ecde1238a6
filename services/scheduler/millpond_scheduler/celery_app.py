"""The Celery application of the scheduler: tasks are ids of rows, state is in PostgreSQL."""

from celery import Celery

from millpond_contracts.ids import PackingId
from millpond_kernel.background import make_celery, with_database
from millpond_scheduler.background.sending import PACKING_TASK, QUEUE
from millpond_scheduler.settings import Settings
from millpond_scheduler.usecases.packings import compute_packing


def register_tasks(app: Celery, settings: Settings) -> None:
    """Gives the application its tasks."""

    def propose_packing(packing_id: str) -> None:
        key = PackingId.parse(packing_id)
        with_database(settings, lambda database: compute_packing(database, key))

    # Called, not written above the function: Celery has no types, and a decorator without any would take its.
    app.task(name=PACKING_TASK)(propose_packing)


def __getattr__(name: str) -> Celery:
    """`app` for `celery -A millpond_scheduler.celery_app`: made when asked for, since it reads the environment."""
    if name not in ("app", "celery"):
        raise AttributeError(name)
    settings = Settings()
    app = make_celery(settings.redis_url.get_secret_value(), settings.redis_prefix, QUEUE)
    register_tasks(app, settings)
    return app
