"""Structured logs on standard error. Nothing secret is ever passed here: no token, command or environment."""

import logging
import sys
from typing import Literal

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger("millpond.agent")


def configure_logging(level: str = "info", log_format: Literal["json", "console"] = "json") -> None:
    """Sends the logs to standard error, as JSON lines or for a person."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if log_format == "json" else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
