"""An engine has launched the kernels of draws before its first request, which need not wait."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton", reason="Triton is not installed")

from models.engine.draft import DraftEngine
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import EngineRequest, Sampling
from models.sampling import draws
from tests.cases.messages import opening, proposing, verifying
from tests.fakes.engines import EPOCH, drain, make_runner

GREEDY = Sampling(temperature=0)
SAMPLED = [
    Sampling(temperature=0.8, seed=1),
    Sampling(temperature=0.8, top_k=7, top_p=0.9, min_p=0.01, repetition_penalty=1.2, seed=2),
]
PROMPT = list(range(1, 40))


class Launches(TorchDispatchMode):
    """What Triton compiles our operations for: types, columns, and whether an address is even."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: set[tuple[Any, ...]] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "outrider":
            self.kinds.add((func.name(), *(self._kind(each) for each in args)))
        return func(*args, **(kwargs or {}))

    def _kind(self, tensor: Tensor) -> tuple[Any, ...]:
        return tensor.dtype, tensor.shape[1:], tensor.data_ptr() % 16 == 0


def asked(engine: type[DraftEngine] | type[TargetEngine], number: int) -> EngineRequest:
    if engine is DraftEngine:
        return proposing(f"s{number}", 1, PROMPT, 3)
    return verifying(f"s{number}", 1, PROMPT, [4, 5], run_on=2)


@pytest.mark.parametrize("kind", [DraftEngine, TargetEngine])
def test_no_request_compiles_a_kernel(
    kind: type[DraftEngine] | type[TargetEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draws, "has_kernels", lambda device: True)
    with Launches() as before:
        engine = kind(make_runner(), NoMaskSource(), EPOCH)
    with Launches() as serving:
        for number, terms in enumerate([GREEDY, *SAMPLED]):
            engine.submit(opening(f"s{number}", terms, len(PROMPT)), "r")
            engine.submit(asked(kind, number), "r")
        drain(engine)
    assert len(serving.kinds) >= 3
    assert not serving.kinds - before.kinds


def test_without_kernels_there_is_nothing_to_launch() -> None:
    with Launches() as before:
        draws.load_kernels(torch.device("cpu"), 300)
    assert not before.kinds
