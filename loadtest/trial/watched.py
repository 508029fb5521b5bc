"""A trial's service, seen from inside, and the streams that run on it while events happen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from loadtest.client.streams import FaultLoad
from loadtest.service.parts import FaultService, wait_gone
from loadtest.service.served import Config, Served, served
from loadtest.trial.frame import Report, crash_noted

_GONE_LIMIT_S = 20.0


@contextlib.contextmanager
def watched_service(
    config_path: Path,
    report: Report,
    *,
    change: Callable[[Config], None] | None = None,
    environment: Mapping[str, str] | None = None,
    keeps_logs: bool = False,
) -> Iterator[tuple[Served, FaultService]]:
    """Serve a config privately and connect to its Ray; nothing of it may be left at the end.

    Args:
        config_path, change, environment: see `served`.
        report: of the trial; where it has problems at the end, the logs are kept.
        keeps_logs: keep them in any case.
    """
    with (
        served(
            config_path,
            change=change,
            keeps_folder=lambda: keeps_logs or not report.is_clean,
            environment=environment,
        ) as service,
        crash_noted(report),  # before the logs are kept or not
    ):
        print(f"the service and its logs are in {service.folder}", flush=True)
        with FaultService(service) as watched:
            yield service, watched
    left = wait_gone(service.folder, _GONE_LIMIT_S)
    report.violations += [f"left over: {process}" for process in left]


@contextlib.contextmanager
def streams_running(load: FaultLoad, report: Report) -> Iterator[None]:
    """Collect what every stream answers undisturbed, then keep all of them running.

    Answers are counted in the report; a failure that nobody has taken at the end is a violation.
    """
    load.collect_references()
    load.start()
    try:
        yield
    finally:
        load.stop()
        report.num_answers = load.num_answers
        report.violations += [f"late: {failure}" for failure in load.take_failures()]
