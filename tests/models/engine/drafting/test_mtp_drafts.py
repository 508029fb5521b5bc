"""What an MTP head drafts in the engine is what it drafts over the whole text, by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Sampling
from tests.cases.models.mtp import NUM_STEPS, PlainMtp, mtp_weights, repeating, write_mtp
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


def client(name: str, prompt: list[int], target: Link, **changes: Any) -> Client:
    terms: dict[str, Any] = {"own_drafts": True, "run_on": lambda: 5, **changes}
    return Client(name, prompt, GREEDY, 40, target, **terms)


@pytest.mark.parametrize("attention", ["auto", "reference"])
@pytest.mark.parametrize("is_right", [False, True])
def test_drafts_are_those_of_the_whole_text(
    attention: str, is_right: bool, drafts: list[tuple[list[int], list[int]]], tmp_path: Path
) -> None:
    """Through prompts in chunks, several sessions in a pass, rejected rows and full blocks."""
    weights = repeating(TARGET) if is_right else mtp_weights(TARGET, seed=4)
    folder = write_mtp(tmp_path, weights)
    runner = make_runner(attention=attention, heads=str(folder))
    target = Link(TargetEngine(runner, NoMaskSource(), EPOCH))
    run_clients([client(f"s{i}", random_prompt(i, 5 + 40 * i), target) for i in range(3)])
    assert len(drafts) > 20
    plain = PlainMtp(TARGET, folder)
    for text, draft in drafts:
        assert draft == plain.draft(text, len(draft)), f"behind {len(text)} tokens"
    assert {len(draft) for _, draft in drafts} == {NUM_STEPS}


def test_a_cached_prefix_brings_its_keys(
    drafts: list[tuple[list[int], list[int]]], tmp_path: Path
) -> None:
    """Also those of a session that nothing was drafted for; but not the state behind them."""
    folder = write_mtp(tmp_path, mtp_weights(TARGET, seed=4))
    runner = make_runner(heads=str(folder))
    target = Link(TargetEngine(runner, NoMaskSource(), EPOCH))
    prompt = random_prompt(5, 50)
    (text,) = run_clients([client("first", prompt, target, own_drafts=False)])
    assert not drafts
    longer = [*prompt, *text[:20], *random_prompt(6, 3)]
    run_clients([client("second", longer, target)])
    size = runner.pool.block_size
    plain = PlainMtp(TARGET, folder)
    for tokens, draft in drafts:
        cached = len(longer) // size * size  # the whole blocks before the new end
        assert draft == plain.draft(tokens, len(draft), unknown=[cached])


def test_a_cache_too_small_for_drafts_goes_without(
    drafts: list[tuple[list[int], list[int]]], tmp_path: Path
) -> None:
    """The whole cache holds the text and not one draft behind it."""
    folder = write_mtp(tmp_path, repeating(TARGET))
    prompt = random_prompt(2, 40)
    texts = []
    for heads in (None, str(folder)):
        runner = make_runner(heads=heads, kv_cache_tokens=80)
        target = Link(TargetEngine(runner, NoMaskSource(), EPOCH))
        texts += run_clients([client("s", prompt, target, run_on=lambda: 0)])
    assert texts[0] == texts[1]
    assert len(texts[0]) == 40
    assert [draft for text, draft in drafts if len(text) + NUM_STEPS > 81] == [[]]
