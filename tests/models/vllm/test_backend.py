"""vLLM's layers around our engines. Skipped where vLLM is not installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed: configs/vllm-cpu.txt")

from models.config import EngineConfig
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Sampling, Verdict
from models.vllm import hooks
from tests.cases.messages import EPOCH, opening, verifying
from tests.fakes.engines import drain, random_prompt, text_logits
from tests.harness.rank_processes import shared_engine

TARGET = "models/demo/target"
NUM_TOKENS = 200
MAX_ROWS = 64  # of a pass
SIZES: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 512,
    "kv_cache_tokens": 2048,
    "max_num_batched_tokens": MAX_ROWS,
}
Graphs = Literal["auto", "off"]


@cache
def by_vllm(graphs: Graphs) -> ModelRunner:
    """The target by vLLM's layers, compiled or eager."""
    return ModelRunner(EngineConfig(model_path=TARGET, engine="vllm", graphs=graphs, **SIZES))


@cache
def by_us() -> ModelRunner:
    return ModelRunner(EngineConfig(model_path=TARGET, **SIZES))


def num_compiled() -> int:
    """Graphs that torch has compiled in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def text(runner: ModelRunner, sampling: Sampling, k: int) -> list[int]:
    """Generate tokens in rounds with drafts of `k` tokens."""
    engine = TargetEngine(runner, NoMaskSource(), EPOCH)
    ids = random_prompt(3, 40)
    engine.submit(opening("s", sampling, len(ids)), "r")
    tokens, base, seq = list(ids), 0, 0
    while len(tokens) < len(ids) + NUM_TOKENS:
        seq += 1
        draft = random_prompt(seq, k)
        engine.submit(verifying("s", seq, tokens, draft, base_len=base), "r")
        (verdict,) = drain(engine)
        assert isinstance(verdict, Verdict)
        base = len(tokens)
        tokens += [*draft[: verdict.num_accepted], verdict.token]
    engine.close("s")
    return tokens[len(ids) :][:NUM_TOKENS]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("graphs", ["off", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_our_own_engines_in_float32(temperature: float, graphs: Graphs) -> None:
    sampling = Sampling(temperature=temperature, seed=7)
    own = text(by_us(), sampling, 0)
    assert [text(by_vllm(graphs), sampling, k) == own for k in (0, 3, 8)] == [True] * 3


@pytest.mark.timeout(300)
def test_compiled_layers_take_passes_of_any_size_and_are_compiled_once() -> None:
    runner, own = by_vllm("auto"), by_us()
    compiled = num_compiled()
    assert compiled > 0
    ids = random_prompt(5, MAX_ROWS)
    for count in range(1, MAX_ROWS + 1):
        found, expected = (text_logits(each, ids[:count], 1) for each in (runner, own))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    assert num_compiled() == compiled


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_compile_their_parts(make_tiny_llama: Callable[..., str]) -> None:
    path = make_tiny_llama(seed=1, num_key_value_heads=4, hidden_size=128, head_dim=32)
    sizes: dict[str, Any] = {"block_size": 32, "engine": "vllm"}
    rows = [("a", 0, random_prompt(1, 40), 40), ("b", 0, random_prompt(2, 7), 1)]
    logits = []
    for num_ranks, graphs in ((1, "off"), (2, "auto")):
        with shared_engine("target", num_ranks, path, graphs=graphs, **sizes) as engine:
            logits.append(engine.forward(*rows))
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=1e-4)


def test_a_compiler_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    config = EngineConfig(model_path=TARGET, engine="vllm", max_model_len=64)
    with pytest.raises(ValueError, match="with no-such-compiler, which is not here"):
        ModelRunner(config)


def test_a_process_that_has_multiplied_nothing_runs_a_pass_in_bfloat16() -> None:
    """A process that has not asked for the matrix registers dies of a signal on CPUs with them."""
    code = (
        "from models.config import EngineConfig\n"
        "from models.engine.runner import ModelRunner\n"
        f"config = EngineConfig(model_path={TARGET!r}, engine='vllm', graphs='off')\n"
        "print(ModelRunner(config).weight_bytes)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 0


def test_a_hook_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hooks.missing_hooks() == []
    gone = {("vllm.forward_context", "no_such_hook"): (), ("vllm.config", "VllmConfig"): ("nil",)}
    monkeypatch.setattr(hooks, "HOOKS", gone)
    assert hooks.missing_hooks() == [
        "no_such_hook of vllm.forward_context",
        "VllmConfig of vllm.config with nil",
    ]
    config = EngineConfig(model_path=TARGET, engine="vllm")
    with pytest.raises(ValueError, match=r"lacks no_such_hook of vllm\.forward_context"):
        hooks.require_vllm(config)
