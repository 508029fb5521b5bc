"""Adapters by vLLM's layers: each text is that of transformers with the adapter in the weights.

Skipped where vLLM is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: configs/vllm-cpu.txt")

from models.config import EngineConfig
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.kv.block_pool import BlockPool
from models.protocol.messages import Sampling, Verdict
from tests.cases.messages import EPOCH, opening, verifying
from tests.cases.models.architectures import configs, write
from tests.cases.models.lora import greedy_text, write_adapter, write_merged
from tests.fakes.engines import drain, random_prompt

GREEDY = Sampling(temperature=0.0)
NAMES = ("", "a", "b")
NUM_TOKENS = 32
PROMPT = random_prompt(3, 70)  # two blocks of 32, and some
SIZES: dict[str, Any] = {"dtype": "float32", "max_model_len": 160, "kv_cache_tokens": 1280}

Texts = Mapping[str, list[int]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model, and what it is with each adapter; adapters have other ranks."""
    root = tmp_path_factory.mktemp("lora")
    write(configs(32)["llama"], root / "model")
    found = {"": root / "model"}
    for seed, name in enumerate("ab", 1):
        adapter = write_adapter(root / name, root / "model", seed, rank=4 * seed)
        found[name] = write_merged(root / f"merged-{name}", root / "model", adapter)
    return found


@pytest.fixture(scope="module")
def expected(folders: Mapping[str, Path]) -> Texts:
    texts = {name: greedy_text(folders[name], PROMPT, NUM_TOKENS) for name in NAMES}
    assert len({tuple(text[:4]) for text in texts.values()}) == len(NAMES)
    return texts


@pytest.fixture(scope="module")
def loaded(folders: Mapping[str, Path], expected: Texts) -> ModelRunner:
    """After the reference: vLLM registers layers of its own with transformers."""
    root = folders[""].parent
    modules = {name: str(root / name) for name in "ab"}
    return ModelRunner(
        EngineConfig(
            model_path=str(folders[""]),
            engine="vllm",
            block_size=32,
            max_num_batched_tokens=64,
            lora_modules=modules,
            max_lora_rank=8,
            **SIZES,
        )
    )


def engine_of(runner: ModelRunner, num_blocks: int = 40) -> TargetEngine:
    runner.pool = BlockPool(num_blocks, runner.pool.block_size)
    return TargetEngine(runner, NoMaskSource(), EPOCH)


def together(
    engine: TargetEngine, names: Sequence[str], sampling: Sampling, drafts: Texts, k: int = 0
) -> dict[str, list[int]]:
    """Texts of sessions that run at once; of each draft the third token is a wrong one."""
    texts = {f"s{name}": list(PROMPT) for name in names}
    for name in names:
        engine.submit(opening(f"s{name}", sampling, len(PROMPT), adapter=name), "r")
    left = list(names)
    for seq in range(4 * NUM_TOKENS):
        asked: dict[str, list[int]] = {}
        for name in left:
            first = len(texts[f"s{name}"]) - len(PROMPT)
            draft = asked[f"s{name}"] = drafts[name][first : first + k]
            if len(draft) > 2:
                draft[2] = (draft[2] + 1) % 256
            engine.submit(verifying(f"s{name}", seq, texts[f"s{name}"], draft), "r")
        for verdict in drain(engine):
            assert isinstance(verdict, Verdict), verdict
            draft = asked[verdict.session_id]
            texts[verdict.session_id] += [*draft[: verdict.num_accepted], verdict.token]
        for name in left:
            if len(texts[f"s{name}"]) >= len(PROMPT) + NUM_TOKENS:
                engine.close(f"s{name}")
        left = [name for name in left if len(texts[f"s{name}"]) < len(PROMPT) + NUM_TOKENS]
    return {name: texts[f"s{name}"][len(PROMPT) :][:NUM_TOKENS] for name in names}


@pytest.mark.parametrize("k", [0, 2, 5])
def test_texts_of_the_model_and_two_adapters_in_one_batch(
    loaded: ModelRunner, expected: Texts, k: int
) -> None:
    assert together(engine_of(loaded), NAMES, GREEDY, expected, k) == expected


def test_a_seeds_text_is_that_of_the_merged_weights(
    loaded: ModelRunner, folders: Mapping[str, Path], expected: Texts
) -> None:
    sampling = Sampling(temperature=0.8, seed=7)
    merged: dict[str, list[int]] = {}
    for name in NAMES:
        own = engine_of(ModelRunner(EngineConfig(model_path=str(folders[name]), **SIZES)), 20)
        merged[name] = together(own, [""], sampling, {"": []})[""]
    assert merged != expected
    for k in (0, 4):
        assert together(engine_of(loaded), NAMES, sampling, merged, k) == merged


def test_a_preempted_session_goes_on_with_its_adapter(loaded: ModelRunner, expected: Texts) -> None:
    engine = engine_of(loaded, num_blocks=10)  # three sessions come to need four each
    assert together(engine, NAMES, GREEDY, expected, 2) == expected
    assert engine.load().num_preemptions > 0


def test_no_prefix_is_shared_between_adapters(loaded: ModelRunner, expected: Texts) -> None:
    engine = engine_of(loaded)
    found = []
    for number, name in enumerate((*NAMES, *NAMES)):
        engine.submit(opening(str(number), GREEDY, len(PROMPT), adapter=name), "r")
        engine.submit(verifying(str(number), 1, PROMPT, []), "r")
        (verdict,) = drain(engine)
        assert isinstance(verdict, Verdict)
        found.append((verdict.token, verdict.num_cached_tokens))
    first = [expected[name][0] for name in NAMES]
    assert found == [(token, num) for num in (0, 64) for token in first]


def test_a_session_that_is_opened_anew_for_another_adapter_keeps_no_keys(
    loaded: ModelRunner, expected: Texts
) -> None:
    engine = engine_of(loaded)
    for seq, name in enumerate(("a", "b", "", "a")):
        engine.submit(opening("s", GREEDY, len(PROMPT), adapter=name), "r")
        engine.submit(verifying("s", seq, PROMPT, []), "r")
        (verdict,) = drain(engine)
        assert isinstance(verdict, Verdict)
        assert verdict.token == expected[name][0]


def test_an_adapter_that_the_engine_has_not_is_refused(loaded: ModelRunner) -> None:
    with pytest.raises(ValueError, match=r"adapter must be one of this engine's \(a, b\), got 'c'"):
        engine_of(loaded).submit(opening("s", GREEDY, 3, adapter="c"), "r")


def test_what_vllm_refuses_of_an_adapter_names_it(folders: Mapping[str, Path]) -> None:
    root = folders[""].parent
    adapter = write_adapter(root / "dora", folders[""], seed=3, use_dora=True)
    config = EngineConfig(
        model_path=str(folders[""]), engine="vllm", lora_modules={"d": str(adapter)}, **SIZES
    )
    with pytest.raises(ValueError, match=r"lora_modules\.d: vLLM cannot serve .* DoRA"):
        ModelRunner(config)
