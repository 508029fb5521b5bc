"""Metrics of engines and constraint replicas, for the page that GET /metrics of a router prints.

Prometheus should read Ray's export on every node, which misses no replica. This page is for people
and for one machine. It is built on request, and a replica that does not answer in time is not on
it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from ray import serve
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from deployments.serve.errors import CALL_ERRORS
from deployments.serve.private import replica_results

logger = logging.getLogger("ray.serve")

Page = tuple[str, bytes]  # a replica's id, its own metrics in Prometheus' text format


def replica_name() -> str:
    """Return the name of this replica, as in the label `replica` of its metrics; "" outside one."""
    try:
        return serve.get_replica_context().replica_id.unique_id
    except RayServeException:
        return ""


async def text_of(handles: Iterable[DeploymentHandle[Any]], *, timeout_s: float) -> bytes:
    """Return the `metrics_page` of every replica that answers in time, by replica. Never raises."""
    asked = (answers_of(handle, "metrics_page", timeout_s=timeout_s) for handle in handles)
    pages: list[Page] = [page for pages in await asyncio.gather(*asked) for page in pages]
    return await asyncio.to_thread(merged, pages)  # about a millisecond for each of them


def merged(pages: Iterable[Page]) -> bytes:
    """Merge pages into one; each sample has the label `replica`."""
    families: dict[str, Metric] = {}
    for replica, text in pages:
        for family in text_string_to_metric_families(text.decode()):
            kept = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            for sample in family.samples:
                kept.add_sample(sample.name, {**sample.labels, "replica": replica}, sample.value)
    registry = CollectorRegistry()
    registry.register(_Families(families.values()))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


async def answers_of(handle: DeploymentHandle[Any], method: str, *, timeout_s: float) -> list[Any]:
    """Return the results of a method of each replica that answers in time. Never raises.

    Broadcasts bypass Serve's queue, so they are answered even if the deployment is full.
    """
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    try:
        async with asyncio.timeout_at(deadline_s):
            results = await replica_results(handle.broadcast(method))
    except (*CALL_ERRORS, RuntimeError, TimeoutError) as error:  # Ray's, of a handle not ready yet
        logger.info("no %s of %s: %s", method, handle.deployment_name, type(error).__name__)
        return []
    answers = await asyncio.gather(
        *(_in_time(result, deadline_s) for result in results), return_exceptions=True
    )
    failed = {type(answer).__name__ for answer in answers if isinstance(answer, BaseException)}
    if failed:
        logger.info("no %s of a %s: %s", method, handle.deployment_name, ", ".join(sorted(failed)))
    return [answer for answer in answers if not isinstance(answer, BaseException)]


async def _in_time(result: Any, deadline_s: float) -> Any:
    async with asyncio.timeout_at(deadline_s):
        return await result.get_async()
