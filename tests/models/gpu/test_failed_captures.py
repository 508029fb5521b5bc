"""A capture that fails leaves the thread on its stream, and torch is not asked for another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

import pytest
import torch
from torch import Tensor

from models.gpu.graphs import CudaGraphs

CPU = torch.device("cpu")


class FakeStream:
    """A stream of a GPU that is not here."""

    def wait_stream(self, other: FakeStream) -> None:
        assert other is not self, "a stream that waits for itself"


class FakeCuda:
    """The streams and captures of `torch.cuda`: of a capture its end comes before its stream's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = FakeStream()
        self.num_recorded = 0
        names: dict[str, Any] = {
            "Stream": lambda device: FakeStream(),
            "current_stream": lambda device: self.current,
            "stream": self.on_stream,
            "graph_pool_handle": object,
            "CUDAGraph": object,
            "graph": self.recording,
        }
        for name, value in names.items():
            monkeypatch.setattr(torch.cuda, name, value)

    @contextmanager
    def on_stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def recording(self, graph: object, *, stream: FakeStream, **terms: Any) -> Recording:
        return Recording(self, stream)


class Recording(AbstractContextManager[None]):
    """As torch writes it: what spoilt the recording is said at its end, on its stream."""

    def __init__(self, cuda: FakeCuda, stream: FakeStream) -> None:
        self.cuda, self.stream = cuda, stream

    def __enter__(self) -> None:
        self.before, self.cuda.current = self.cuda.current, self.stream
        self.cuda.num_recorded += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is not None:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.cuda.current = self.before


def failing_with(error: Exception, cuda: FakeCuda) -> Callable[[], Tensor]:
    """A pass that runs, but cannot be recorded."""

    def compute() -> Tensor:
        if cuda.num_recorded:
            raise error
        return torch.zeros(1)

    return compute


@pytest.mark.parametrize(
    ("error", "num_recorded"),
    [(RuntimeError("operation not permitted"), 1), (torch.OutOfMemoryError("out of memory"), 2)],
    ids=["not recordable", "no memory"],
)
def test_after_a_failed_capture(
    error: Exception, num_recorded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory was wanting, a smaller one may still fit."""
    cuda = FakeCuda(monkeypatch)
    own, graphs = cuda.current, CudaGraphs(CPU)
    with pytest.raises(RuntimeError, match="a previous error during capture"):
        graphs.capture(failing_with(error, cuda))
    assert cuda.current is own
    if num_recorded == 1:
        with pytest.raises(RuntimeError, match="an earlier capture failed"):
            graphs.capture(lambda: torch.zeros(1))
    else:
        graphs.capture(lambda: torch.zeros(1))
    assert cuda.num_recorded == num_recorded
    assert cuda.current is own
