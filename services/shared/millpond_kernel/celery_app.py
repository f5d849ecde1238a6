"""One Celery process for several services: `celery -A millpond_kernel.celery_app worker -Q celery,scheduler`.

MILLPOND_CELERY_SERVICES names them, separated by commas; the environment holds the settings of each. A process for one
alone is `-A millpond_<service>.celery_app`.
"""

import importlib
import os

from celery import Celery

from millpond_kernel.background import make_celery
from millpond_kernel.settings import ServiceSettings

SERVICES_VARIABLE = "MILLPOND_CELERY_SERVICES"


def __getattr__(name: str) -> Celery:
    """`app`, made when asked for, since it reads the environment."""
    if name not in ("app", "celery"):
        raise AttributeError(name)
    app: Celery | None = None
    for service in os.environ[SERVICES_VARIABLE].split(","):
        module = importlib.import_module(f"millpond_{service}.celery_app")
        settings: ServiceSettings = module.Settings()
        app = app or make_celery(settings.redis_url.get_secret_value(), settings.redis_prefix)
        module.register_tasks(app, settings)
    assert app is not None, "splitting gives at least one part"
    return app
