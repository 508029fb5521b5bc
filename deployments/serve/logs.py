"""Writes our log lines in Serve's place and form, in every process of ours.

A replica's lines join those of Serve itself (`logging_config` of the config file: JSON or text,
level). They have the request's id if there is one. Ranks are plain actors, so they write to their
own stderr in the same form. Ray keeps it in a file per process. The subject of a line is in its
`extra`: ids, counts, reasons of our own. A line never has a key, a prompt or a completion.
"""

from __future__ import annotations

import logging
from logging.handlers import MemoryHandler

from deployments.serve.private import json_formatter, writes_json

PACKAGES = ("deployments", "router", "models")
SERVE_LOGGER = "ray.serve"
_TEXT_FORMAT = "%(asctime)s %(levelname)s %(message)s"


class _ToServe(logging.Handler):
    """Hands records to the handlers that Serve has now, which may be given to it later."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the record on, if Serve's level lets it through."""
        serve = logging.getLogger(SERVE_LOGGER)
        if serve.isEnabledFor(record.levelno):
            serve.handle(record)


class _Fields(logging.Filter):
    """Adds the fields that are the same for every line of a process."""

    def __init__(self, fields: dict[str, object]) -> None:
        super().__init__()
        self._fields = fields

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets every record pass."""
        record.__dict__.update(self._fields)
        return True


def join_serve() -> None:
    """Make our packages' log lines lines of Serve. Call it in a Serve replica. Idempotent."""
    for name in PACKAGES:
        logger = logging.getLogger(name)
        if not any(isinstance(handler, _ToServe) for handler in logger.handlers):
            logger.addHandler(_ToServe())
        logger.setLevel(logging.DEBUG)  # the handler decides
        logger.propagate = False


def is_json() -> bool:
    """Return whether this Serve replica writes its log file as JSON."""
    targets = [
        handler.target if isinstance(handler, MemoryHandler) else handler
        for handler in logging.getLogger(SERVE_LOGGER).handlers
    ]
    return any(one is not None and writes_json(one) for one in targets)


def configure_rank(*, as_json: bool, **fields: object) -> None:
    """Write log lines to stderr. Call it once, in a process that is no replica.

    Args:
        as_json: a JSON object per line; else text.
        fields: part of every line, where it is JSON.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(json_formatter() if as_json else logging.Formatter(_TEXT_FORMAT))
    handler.addFilter(_Fields(fields))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
