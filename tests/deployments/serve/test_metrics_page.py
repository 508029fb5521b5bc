"""The metrics of other processes: whoever answers is on the page, whoever does not is missed."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from ray.exceptions import RayError
from ray.serve.handle import DeploymentBroadcastResponse

from deployments.serve.page import text_of


class Result:
    """What a broadcast has of one replica; `answer` None: the replica is silent."""

    def __init__(self, answer: tuple[str, bytes] | Exception | None) -> None:
        self._answer = answer

    async def get_async(self) -> tuple[str, bytes]:
        if self._answer is None:
            await asyncio.Event().wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        assert self._answer is not None
        return self._answer


class Handle:
    """A deployment whose replicas answer so; Ray's own response collects that."""

    deployment_name = "Target"

    def __init__(self, *answers: tuple[str, bytes] | Exception | None) -> None:
        self._answers = answers

    def broadcast(self, method: str) -> DeploymentBroadcastResponse:
        assert method == "metrics_page"
        for answer in self._answers:
            if isinstance(answer, RuntimeError):  # the handle itself is at fault
                raise answer
        return DeploymentBroadcastResponse(self._results(), None)

    async def _results(self) -> Any:
        if len(self._answers) == 0:
            raise RayError("no replicas")
        return [Result(answer) for answer in self._answers]


async def test_one_silent_replica_hides_no_other() -> None:
    page = ("t1", b"# TYPE passes counter\npasses_total 3.0\n")
    other = ("d1", b"# TYPE passes counter\npasses_total 4.0\n")
    lost = grpc.aio.AioRpcError(
        grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "reset"
    )
    handles: Any = [Handle(None, page, RayError("gone"), lost), Handle(), Handle(other)]
    handles.append(Handle(RuntimeError("Router is not initialized")))
    text = (await text_of(handles, timeout_s=0.2)).decode()
    assert 'passes_total{replica="t1"} 3.0' in text
    assert 'passes_total{replica="d1"} 4.0' in text
