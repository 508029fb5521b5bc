"""vLLM's layers around our engines. Skipped where vLLM is not installed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: configs/vllm-cpu.txt")

from models.config import EngineConfig
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Sampling, Verdict
from models.vllm import hooks
from tests.cases.messages import EPOCH, opening, verifying
from tests.fakes.engines import drain, random_prompt

TARGET = "models/demo/target"
NUM_TOKENS = 200


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


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_our_own_engines_in_float32(temperature: float) -> None:
    sizes: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "kv_cache_tokens": 2048}
    sampling = Sampling(temperature=temperature, seed=7)
    own = text(ModelRunner(EngineConfig(model_path=TARGET, **sizes)), sampling, 0)
    runner = ModelRunner(EngineConfig(model_path=TARGET, engine="vllm", **sizes))
    assert [text(runner, sampling, k) == own for k in (0, 3, 8)] == [True] * 3


def test_a_process_that_has_multiplied_nothing_runs_a_pass_in_bfloat16() -> None:
    """On CPUs with matrix registers a process that has not asked for them dies of a signal."""
    code = (
        "from models.config import EngineConfig\n"
        "from models.engine.runner import ModelRunner\n"
        f"config = EngineConfig(model_path={TARGET!r}, engine='vllm', max_model_len=512)\n"
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
