"""What an MTP head drafts in the engine is what it drafts over the whole text, by transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.engine.drafting.mtp import MtpDrafter
from models.engine.drafting.own import OwnDrafts
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


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """Text and draft of all drafts that are made, each as long as can be."""
    monkeypatch.setattr(OwnDrafts, "num_heads", lambda self, num_sessions: NUM_STEPS)
    made: list[tuple[list[int], list[int]]] = []
    draw = MtpDrafter.draw

    def note(self, sessions, samplings, num_tokens):
        texts = [list(session.tokens.ids) for session in sessions]
        drawn = draw(self, sessions, samplings, num_tokens)
        made.extend(zip(texts, drawn, strict=True))
        return drawn

    monkeypatch.setattr(MtpDrafter, "draw", note)
    return made


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
    clients = [
        Client(
            f"s{i}",
            random_prompt(i, 5 + 40 * i),
            GREEDY,
            40,
            target,
            run_on=lambda: 5,
            own_drafts=True,
        )
        for i in range(3)
    ]
    run_clients(clients)
    assert len(drafts) > 20
    plain = PlainMtp(TARGET, folder)
    for text, draft in drafts:
        assert draft == plain.draft(text, len(draft)), f"behind {len(text)} tokens"
    assert {len(draft) for _, draft in drafts} == {NUM_STEPS}
