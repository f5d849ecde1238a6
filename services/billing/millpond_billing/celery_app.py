"""The Celery application of billing: tasks are ids of rows, state is in PostgreSQL, nothing is lost with a message."""

from celery import Celery

from millpond_billing.background.sending import EXPORT_TASK, FORGET_TASK, STATEMENT_TASK
from millpond_billing.background.work import build_one_export, close_statements, forget_export
from millpond_billing.settings import Settings
from millpond_contracts.ids import ExportId, StatementId
from millpond_kernel.background import make_celery, with_database


def register_tasks(app: Celery, settings: Settings) -> None:
    """Gives the application its tasks."""

    def build_export(export_id: str) -> None:
        key = ExportId.parse(export_id)
        with_database(
            settings,
            lambda database: build_one_export(
                database,
                key,
                settings.export_folder,
                step_rows=settings.export_step_rows,
                keep_days=settings.export_days,
            ),
        )

    def forget(export_id: str) -> None:
        key = ExportId.parse(export_id)
        with_database(settings, lambda database: forget_export(database, key, settings.export_folder))

    def close_statement(statement_id: str) -> None:
        with_database(settings, lambda database: close_statements(database, StatementId.parse(statement_id)))

    # Called, not written above the functions: Celery has no types, and a decorator without any would take theirs.
    app.task(name=EXPORT_TASK)(build_export)
    app.task(name=FORGET_TASK)(forget)
    app.task(name=STATEMENT_TASK)(close_statement)


def __getattr__(name: str) -> Celery:
    """`app` for `celery -A millpond_billing.celery_app`: made when asked for, since it reads the environment."""
    if name not in ("app", "celery"):
        raise AttributeError(name)
    settings = Settings()
    app = make_celery(settings.redis_url.get_secret_value(), settings.redis_prefix)
    register_tasks(app, settings)
    return app
