"""What a head with a layer drafts in the engine is what it drafts over whole texts.

Over whole texts an MTP head is computed by transformers, and an EAGLE-3 head in plain torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Sampling
from tests.cases.models.eagle3 import (
    FEW_IDS,
    NUM_STEPS,
    PlainEagle3,
    Spelling,
    eagle3_weights,
    early,
    write_eagle3,
)
from tests.cases.models.mtp import PlainMtp, mtp_weights, repeating, write_mtp
from tests.fakes.engines import (
    EPOCH,
    Client,
    Link,
    make_runner,
    random_prompt,
    run_clients,
    tiny_checkpoint,
)

TARGET = tiny_checkpoint(noise=0.0)
GREEDY = Sampling(temperature=0)
Drafts = list[tuple[list[int], list[int]]]
each_kind = pytest.mark.parametrize("kind", ["mtp", "eagle3"])


def make_head(kind: str, folder: Path, *, is_right: bool = False) -> PlainMtp | PlainEagle3:
    """Write a head, which may be right now and then; return it for whole texts."""
    if kind == "mtp":
        write_mtp(folder, repeating(TARGET) if is_right else mtp_weights(TARGET, seed=4))
        return PlainMtp(TARGET, folder)
    weights = early(TARGET) if is_right else eagle3_weights(TARGET, seed=4)
    write_eagle3(folder, TARGET, weights)
    return PlainEagle3(TARGET, weights)


def client(name: str, prompt: list[int], target: Link, **changes: Any) -> Client:
    terms: dict[str, Any] = {"own_drafts": True, "run_on": lambda: 5, **changes}
    return Client(name, prompt, GREEDY, 40, target, **terms)


def run(folder: Path, attention: str = "auto") -> None:
    """Prompts in chunks, several sessions in a pass, rejected rows and full blocks."""
    runner = make_runner(attention=attention, heads=str(folder))
    target = Link(TargetEngine(runner, NoMaskSource(), EPOCH))
    run_clients([client(f"s{i}", random_prompt(i, 5 + 40 * i), target) for i in range(3)])


def check(drafts: Drafts, plain: PlainMtp | PlainEagle3) -> None:
    assert len(drafts) > 20
    for text, draft in drafts:
        assert draft == plain.draft(text, len(draft)), f"behind {len(text)} tokens"
    assert {len(draft) for _, draft in drafts} == {NUM_STEPS}


@each_kind
@pytest.mark.parametrize("attention", ["auto", "reference"])
@pytest.mark.parametrize("is_right", [False, True])
def test_drafts_are_those_of_the_whole_text(
    kind: str, attention: str, is_right: bool, drafts: Drafts, tmp_path: Path
) -> None:
    plain = make_head(kind, tmp_path, is_right=is_right)
    run(tmp_path, attention)
    check(drafts, plain)


@pytest.mark.matrix
@pytest.mark.parametrize("attention", ["auto", "reference"])
@pytest.mark.parametrize("spelling", ["original", "speculators"])
@pytest.mark.parametrize("ids", [None, FEW_IDS], ids=["all", "few"])
def test_spellings_and_vocabularies_of_eagle3(
    attention: str,
    spelling: Spelling,
    ids: Sequence[int] | None,
    drafts: Drafts,
    tmp_path: Path,
) -> None:
    weights = eagle3_weights(TARGET, seed=4, ids=ids)
    run(write_eagle3(tmp_path, TARGET, weights, spelling), attention)
    check(drafts, PlainEagle3(TARGET, weights))
    if ids is not None:
        assert {token for _, draft in drafts for token in draft} <= set(ids)


FC_NORMS = {f"fc_norm.{index}.weight": 64 for index in range(3)}
HEAD_NORMS = {f"layers.0.self_attn.{name}.weight": 16 for name in ("q_norm", "k_norm")}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("option", "norms", "width"),
    [
        ("norm_before_residual", {}, None),
        ("norm_before_fc", {"input_norm.weight": 3 * 64}, None),
        ("fc_norm", FC_NORMS, None),
        ("norm_output", {}, None),
        ("", HEAD_NORMS, None),  # of queries and keys
        ("", {}, 48),  # with an embedding of its own
    ],
    ids=["norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "norms", "width"],
)
def test_what_a_layer_of_eagle3_may_have(
    option: str, norms: dict[str, int], width: int | None, drafts: Drafts, tmp_path: Path
) -> None:
    weights = eagle3_weights(TARGET, seed=4, width=width)
    generator = torch.Generator().manual_seed(9)
    for name, size in norms.items():
        weights[name] = 1 + 0.3 * torch.randn(size, generator=generator)
    options: dict[str, Any] = {option: True} if option else {}
    run(write_eagle3(tmp_path, TARGET, weights, **options))
    check(drafts, PlainEagle3(TARGET, weights, **options))
    if option:
        others = PlainEagle3(TARGET, weights)
        assert any(draft != others.draft(text, NUM_STEPS) for text, draft in drafts)


@each_kind
def test_a_cached_prefix_brings_its_keys(kind: str, drafts: Drafts, tmp_path: Path) -> None:
    """Also those of a session that nothing was drafted for; but not the state behind them."""
    plain = make_head(kind, tmp_path)
    runner = make_runner(heads=str(tmp_path))
    target = Link(TargetEngine(runner, NoMaskSource(), EPOCH))
    prompt = random_prompt(5, 50)
    (text,) = run_clients([client("first", prompt, target, own_drafts=False)])
    assert not drafts
    longer = [*prompt, *text[:20], *random_prompt(6, 3)]
    run_clients([client("second", longer, target)])
    size = runner.pool.block_size
    assert drafts
    for tokens, draft in drafts:
        cached = len(longer) // size * size  # the whole blocks before the new end
        assert draft == plain.draft(tokens, len(draft), unknown=[cached])


@each_kind
def test_a_cache_too_small_for_drafts_goes_without(
    kind: str, drafts: Drafts, tmp_path: Path
) -> None:
    """The whole cache holds the text and not one draft behind it."""
    make_head(kind, tmp_path, is_right=True)
    prompt = random_prompt(2, 40)
    texts = []
    for heads in (None, str(tmp_path)):
        runner = make_runner(heads=heads, kv_cache_tokens=80)
        target = Link(TargetEngine(runner, NoMaskSource(), EPOCH))
        texts += run_clients([client("s", prompt, target, run_on=lambda: 0)])
    assert texts[0] == texts[1]
    assert len(texts[0]) == 40
    assert [draft for text, draft in drafts if len(text) + NUM_STEPS > 81] == [[]]
