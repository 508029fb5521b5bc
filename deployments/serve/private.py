"""Every private part of Ray that is used outside `config/cluster.py`, so that an upgrade of Ray
touches these two files.

Ray's version is pinned. Each function tells what the public interface lacks.
`tests/deployments/serve/test_private.py` and the tests marked `ray` show whether they still work.
Imports of Serve are inside the functions: ranks import this module, and Serve would cost each of
them 40 MB.
"""

from __future__ import annotations

import logging
from typing import Any

from ray._common.formatters import JSONFormatter


def json_formatter() -> logging.Formatter:
    """Serve's form of JSON log lines. The public API has it for Serve's own loggers only."""
    formatter: logging.Formatter = JSONFormatter()
    return formatter


def writes_json(handler: logging.Handler) -> bool:
    """Return whether a handler of Serve's writes JSON lines.

    The public API has only the given config for that.
    """
    return isinstance(handler.formatter, JSONFormatter)


def power_of_two_choices() -> Any:
    """Return the request router that Serve uses by default, a class.

    The public API has only its base, `ray.serve.request_router.RequestRouter`, which chooses
    nothing.
    """
    from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter

    return PowerOfTwoChoicesRequestRouter


# What Serve uses by default, by the path of its own module. Serve pickles that module by value. By
# the default's path it is a whole package, and a replica tells a new controller 119 KB of itself.
# So much goes through Ray's object stores, which do not find each other for a minute after the
# head's death. Serve kills a replica that has told nothing after 30 s. HAProxy would refuse it.
REQUEST_ROUTER = "ray.serve._private.request_router.pow_2_router:PowerOfTwoChoicesRequestRouter"


def handle_of(deployment: str, application: str) -> Any:
    """Return the handle of a deployment that need not be there yet; calls wait for it.

    The public `serve.get_deployment_handle` refuses one that is not there.
    """
    from ray.serve.handle import DeploymentHandle

    return DeploymentHandle(deployment, application)


async def replica_results(broadcast: Any) -> list[Any]:
    """Return a response for each replica that a broadcast went to, each to be awaited on its own.

    The public `results_async` has no answer at all if one replica is silent.
    """
    return list(await broadcast._fetch_replica_results_async())


def root_url(app_name: str) -> str:
    """Return the URL of an application through Serve's HTTP proxy, without a slash at the end.

    There is no public way to ask for it. Blocks: it asks Serve's controller.
    """
    from ray.serve.context import _get_global_client

    client = _get_global_client(raise_if_no_controller_running=False)
    if client is None:
        return "http://127.0.0.1:8000"
    application = client.get_serve_details()["applications"].get(app_name, {})
    return f"{client.root_url}{application.get('route_prefix') or ''}".rstrip("/")


def driver_of_this_job() -> int | None:
    """Return the process that started the job of this task or actor.

    None means that it is this process, or one of another machine. The public API lists jobs by the
    dashboard only, which may be missing.
    """
    import os

    import ray
    from ray._private import worker

    if not ray.is_initialized():
        return None
    job_id = ray.get_runtime_context().get_job_id()
    process: Any = worker.global_worker
    jobs = process.gcs_client.get_all_job_info(
        skip_submission_job_info_field=True, skip_is_running_tasks_field=True
    )
    here = ray.util.get_node_ip_address()
    for job in jobs.values():
        is_ours = job.job_id.hex() == job_id and job.driver_address.ip_address == here
        if is_ours and not job.is_dead and job.driver_pid != os.getpid():
            return int(job.driver_pid)
    return None
