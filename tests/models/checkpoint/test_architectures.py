"""Every architecture: our text is that of transformers, with and without drafts, in any batch."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from models.attention import gather_plan as attention_plan
from models.attention import interface as attention
from models.attention.features import AttentionFeatures
from models.config import AttentionName
from models.cpu import batch, ops
from models.cpu.fused_decoder import FusedDecoder
from models.cpu.kernels.compiling import Call
from models.engine.drafting.lengths import DraftLengths
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.kv.rows import SequenceRows
from models.layers.linear import can_pack
from tests.cases.models import architectures as architectures
from tests.cases.models.architectures import (
    CONFIGS,
    GREEDY,
    NUM_TOKENS,
    VOCAB_SIZE,
    checkpoint,
    forget_runners,
    prompts,
    reference_texts,
    runner,
    serve,
    write,
)
from tests.fakes.engines import EPOCH, Client, Link, run_clients, tiny_config

DRAFT_NOISE = 0.01
FUSED = {"llama", "qwen2", "qwen3", "mistral"}
BITS_DEPEND = {"laguna"}  # on the rows beside it: its experts are transformers' own

Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    yield
    forget_runners()


# By the compiled kernels, and by torch's own operations.
each_attention = pytest.mark.parametrize("attention", ["auto", "reference"])


@pytest.mark.timeout(300)  # the first of them compiles the kernels
@pytest.mark.parametrize("name", CONFIGS)
@each_attention
def test_greedy_text_is_that_of_transformers(name: str, attention: str) -> None:
    assert all(len(set(text)) > 6 for text in reference_texts(checkpoint(name)))  # says something
    served = serve(checkpoint(name), attention=attention)
    assert served.texts == reference_texts(checkpoint(name))


@pytest.mark.matrix
@pytest.mark.parametrize("name", CONFIGS)
@each_attention
def test_drafts_change_nothing(name: str, attention: str) -> None:
    served = serve(checkpoint(name), checkpoint(name, DRAFT_NOISE), k=4, attention=attention)
    assert served.texts == reference_texts(checkpoint(name))
    assert 0 < served.num_accepted < served.num_drafted


@pytest.mark.matrix
@pytest.mark.parametrize("name", CONFIGS)
@each_attention
def test_its_first_layer_drafts_and_changes_nothing(
    name: str, attention: AttentionName, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(DraftLengths, "choose", lambda self, num_sessions: 3)
    loaded = runner(checkpoint(name), attention=attention, early_exit=1)
    target = Link(TargetEngine(loaded, NoMaskSource(), EPOCH))
    clients = [
        Client(str(number), prompt, GREEDY, NUM_TOKENS, target, run_on=lambda: 8, own_drafts=True)
        for number, prompt in enumerate(prompts())
    ]
    assert run_clients(clients) == reference_texts(checkpoint(name))
    verdicts = [verdict for client in clients for verdict in client.verdicts]
    assert sum(verdict.num_own_drafted for verdict in verdicts) > 20


@pytest.mark.parametrize("name", CONFIGS)
@each_attention
def test_a_row_has_the_same_bits_in_every_batch(name: str, attention: str) -> None:
    if not can_pack(torch.float32):
        pytest.skip("this CPU or torch has no packed kernel for float32")
    loaded = runner(checkpoint(name), attention=attention)
    assert loaded.batch_invariant == (name not in BITS_DEPEND)
    is_fused = isinstance(loaded.layers, FusedDecoder)
    assert is_fused == (name in FUSED and attention == "auto")


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3", "gpt_oss", "qwen3_moe"])
@each_attention
def test_bfloat16_is_batch_invariant(name: str, attention: str) -> None:
    if not can_pack(torch.bfloat16):
        pytest.skip("this CPU or torch has no packed kernel for bfloat16")
    assert runner(checkpoint(name), "bfloat16", attention).batch_invariant


@pytest.mark.parametrize("name", ["mistral", "gemma2"])
@each_attention
def test_rows_far_behind_a_window_have_the_bits_of_the_whole(
    name: str, attention: str, tmp_path: Path
) -> None:
    """Chunks that the window hides from them are not read, and full layers read all."""
    if not can_pack(torch.float32):
        pytest.skip("this CPU or torch has no packed kernel for float32")
    config = copy.deepcopy(CONFIGS[name])
    config.max_position_embeddings = 2048
    write(config, tmp_path)
    sizes = {"max_model_len": 2048, "kv_cache_tokens": 8192}
    loaded = ModelRunner(tiny_config(tmp_path, attention=attention, **sizes))
    texts = [random.Random(seed).choices(range(VOCAB_SIZE), k=1400) for seed in range(2)]
    tables = [loaded.pool.new_table() for _ in texts]
    whole = []
    for table, text in zip(tables, texts, strict=True):
        table.resize(1400)
        parts = [SequenceRows(table, i, text[i : i + 350], 350) for i in range(0, 1400, 350)]
        whole.append(torch.cat([loaded.forward([part]) for part in parts]))
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        expected = model(torch.tensor([texts[0]])).logits[0]
    torch.testing.assert_close(whole[0], expected, rtol=1e-3, atol=1e-3)
    for start, count in [(1398, 1), (1380, 4), (1036, 9), (1020, 100)]:
        rows = SequenceRows(tables[0], start, texts[0][start : start + count], count)
        other = SequenceRows(tables[1], 1100, texts[1][1100:1103], 3)
        alone, among = loaded.forward([rows]), loaded.forward([rows, other])
        assert torch.equal(alone, whole[0][start : start + count]), start
        assert torch.equal(among, torch.cat((alone, whole[1][1100:1103]))), start


# --- one thing broken on purpose: the texts must differ ----------------------------------------


def _shift_windows(patch: Patch, shift: int) -> None:
    make, attend = attention_plan._MaskPlan.make, ops.attend

    def shifted(plan: attention_plan._MaskPlan, *args: object) -> dict[int | None, torch.Tensor]:
        others = [None if w is None else w + shift for w in plan.windows]
        masks = make(dataclasses.replace(plan, windows=others), *args)
        return {w: masks[other] for w, other in zip(plan.windows, others, strict=True)}

    def attend_shifted(layer: Any, heads: int, features: AttentionFeatures, *more: Any) -> Call:
        window = None if features.window is None else features.window + shift
        return attend(layer, heads, dataclasses.replace(features, window=window), *more)

    patch.setattr(attention_plan._MaskPlan, "make", shifted)
    for module in (ops, batch):  # by itself, and as a step of a program
        patch.setattr(module, "attend", attend_shifted)


def _without(patch: Patch, feature: str) -> None:
    def features(**fields: Any) -> AttentionFeatures:
        return AttentionFeatures(**{**fields, feature: None})

    patch.setattr(attention, "AttentionFeatures", features)


def _with_the_default_scale(patch: Patch) -> None:
    def features(**fields: Any) -> AttentionFeatures:
        return AttentionFeatures(**{**fields, "scale": 16**-0.5})

    patch.setattr(attention, "AttentionFeatures", features)


MUTANTS = {
    "window_one_longer": ("mistral", lambda patch: _shift_windows(patch, 1)),
    "window_one_shorter": ("phi3", lambda patch: _shift_windows(patch, -1)),
    "alternating_window_one_longer": ("gemma3", lambda patch: _shift_windows(patch, 1)),
    "no_softcap": ("gemma2", lambda patch: _without(patch, "softcap")),
    "no_sinks": ("gpt_oss", lambda patch: _without(patch, "sinks")),
    "usual_scale": ("gemma3", _with_the_default_scale),
}


@pytest.mark.parametrize("mutant", MUTANTS)
@each_attention
def test_mutants_are_seen(mutant: str, attention: str, monkeypatch: Patch) -> None:
    name, break_it = MUTANTS[mutant]
    break_it(monkeypatch)
    architectures._load.cache_clear()  # kernels learn what a layer asks for once
    try:
        served = serve(checkpoint(name), attention=attention)
    finally:
        architectures._load.cache_clear()
    assert served.texts != reference_texts(checkpoint(name))
