"""Drafts of the target's own, of each kind: the text is what it is without, in fewer passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from msgspec import structs

from models.engine.drafting.lengths import DraftLengths
from models.engine.drafting.trees import DraftTrees, Shape
from models.engine.runner import ModelRunner, SequenceRows
from models.engine.target import TargetEngine
from models.grammar.masks import MaskSource, NoMaskSource
from models.protocol.messages import Failed, Sampling, Verdict
from tests.cases.messages import opening, verifying
from tests.cases.models.eagle3 import early, write_eagle3
from tests.cases.models.medusa import NUM_HEADS, residuals, write_new
from tests.cases.models.mtp import NUM_STEPS, repeating, write_mtp
from tests.fakes.engines import (
    CONSTRAINT,
    EOS_ID,
    EPOCH,
    BadLink,
    Client,
    Link,
    ScriptedMasks,
    drain,
    make_runner,
    random_prompt,
    reference_greedy,
    run_clients,
    tiny_checkpoint,
)

pytestmark = pytest.mark.matrix

GREEDY = Sampling(temperature=0)
# Nearly greedy: the tiny model's texts then loop, and these heads are right now and then.
SAMPLINGS = {
    "greedy": GREEDY,
    "greedy under rejection": Sampling(temperature=0, verification="rejection"),
    "sampled": Sampling(temperature=0.05, seed=5),
    "truncated": Sampling(temperature=0.05, top_k=20, top_p=0.9, min_p=0.01, seed=6),
    "penalised": Sampling(temperature=0.05, seed=7, presence_penalty=0.01),
}
WIDTH = 64  # of the tiny checkpoint


@cache
def heads_folder(kind: str) -> str:
    """Heads that are right now and then: texts loop, and these nearly repeat the newest token."""
    folder = Path(mkdtemp(prefix=f"outrider-{kind}-"))
    if kind == "mtp":
        return str(write_mtp(folder, repeating(tiny_checkpoint(noise=0.0))))
    if kind == "eagle3":
        target = tiny_checkpoint(noise=0.0)
        return str(write_eagle3(folder, target, early(target)))
    return str(write_new(folder, residuals(WIDTH, scale=0.01)))


def runner(kind: str, **changes: Any) -> ModelRunner:
    if kind == "early exit":
        return make_runner(early_exit=1, **changes)
    return make_runner(heads=heads_folder(kind), **changes)


KINDS = ("medusa", "mtp", "eagle3", "early exit")
assert NUM_HEADS == NUM_STEPS


# Behind first candidates alone, and behind any.
CATERPILLAR = [(-1, 0), (0, 0), (-1, 1), (1, 0), (0, 1), (-1, 2), (1, 1)]
BUSH = [(-1, 0), (-1, 1), (0, 0), (1, 0), (0, 1), (2, 0), (3, 1), (1, 2)]


def draft_always(patch: pytest.MonkeyPatch, *, trees: bool) -> None:
    """Have all heads draft in every pass, whatever they cost: chains or trees."""
    patch.setattr(DraftLengths, "choose", lambda self, num_sessions: NUM_HEADS)

    def choose(self: DraftTrees, num_sessions: int, length: int) -> Shape:
        tree = BUSH if self.has_all_paths else CATERPILLAR
        return tree if trees else []

    patch.setattr(DraftTrees, "choose", choose)


@pytest.fixture(params=["chain", "tree"])
def all_heads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, trees=request.param == "tree")


def clients_of(
    target: Link,
    sampling: Sampling,
    *,
    own_drafts: bool,
    num_sessions: int = 3,
    num_tokens: int = 120,
    run_on: int = 9,
    **terms: Any,
) -> list[Client]:
    """Make sessions with prompts and seeds of their own."""
    return [
        Client(
            f"s{i}",
            random_prompt(i, 5 + 11 * i),
            structs.replace(sampling, seed=sampling.seed + i),
            num_tokens,
            target,
            run_on=lambda: run_on,
            own_drafts=own_drafts,
            **terms,
        )
        for i in range(num_sessions)
    ]


def texts_of(
    made: ModelRunner,
    sampling: Sampling,
    *,
    link: Callable[[TargetEngine], Link] = Link,
    masks: MaskSource | None = None,
    **terms: Any,
) -> tuple[list[list[int]], list[Verdict]]:
    target = link(TargetEngine(made, masks or NoMaskSource(), EPOCH))
    clients = clients_of(target, sampling, **terms)
    texts = run_clients(clients)
    return texts, [verdict for client in clients for verdict in client.verdicts]


@pytest.mark.usefixtures("all_heads")
@pytest.mark.parametrize("attention", ["auto", "reference"])
@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_that_without_heads(kind: str, name: str, attention: str) -> None:
    sampling = SAMPLINGS[name]
    plain, _ = texts_of(make_runner(attention=attention), sampling, own_drafts=False)
    drafted, verdicts = texts_of(runner(kind, attention=attention), sampling, own_drafts=True)
    assert drafted == plain
    assert sum(verdict.num_own_drafted for verdict in verdicts) > 0
    assert sum(len(verdict.own) for verdict in verdicts) > 0, "none was accepted"
    refused, verdicts = texts_of(runner(kind, attention=attention), sampling, own_drafts=False)
    assert refused == plain
    assert not any(verdict.num_own_drafted for verdict in verdicts)


@pytest.mark.usefixtures("all_heads")
@pytest.mark.parametrize("kind", KINDS)
def test_a_message_alone_is_drafted_for_too(kind: str) -> None:
    """By the state that its text ended with; not where the text is another."""
    plain, _ = texts_of(make_runner(), SAMPLINGS["sampled"], own_drafts=False)
    drafted, verdicts = texts_of(runner(kind), SAMPLINGS["sampled"], own_drafts=True, run_on=0)
    assert drafted == plain
    assert {verdict.part for verdict in verdicts} == {0}
    assert sum(len(verdict.own) for verdict in verdicts) > 0

    engine = TargetEngine(runner(kind), NoMaskSource(), EPOCH)
    engine.submit(opening("s", GREEDY, 8), "r")
    prompt = random_prompt(1, 8)
    for seq, tokens in enumerate((prompt, [*prompt[:-1], 3], [*prompt[:-1], 3, 4]), start=1):
        message = verifying("s", seq, tokens, [])
        engine.submit(structs.replace(message, own_drafts=True), "r")
        (verdict,) = drain(engine)
        assert isinstance(verdict, Verdict)
        assert verdict.num_own_drafted == 0, "the text is not what the state ended"


@pytest.mark.usefixtures("all_heads")
@pytest.mark.parametrize("delay_polls", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_grammar_holds_and_text_stays(kind: str, delay_polls: int) -> None:
    """Rows of drafts have masks; where these come late, the states of a pass are kept."""

    def masks() -> ScriptedMasks:
        made = ScriptedMasks()
        made.delay_polls = delay_polls
        return made

    terms: dict[str, Any] = {
        "constraint": CONSTRAINT,
        "eos_ids": [EOS_ID],
        "num_tokens": 12,
    }
    sampling = Sampling(temperature=0.7, seed=3)
    plain, _ = texts_of(make_runner(), sampling, own_drafts=False, masks=masks(), **terms)
    drafted, verdicts = texts_of(runner(kind), sampling, own_drafts=True, masks=masks(), **terms)
    assert drafted == plain
    assert any(verdict.num_own_drafted for verdict in verdicts)


@pytest.mark.usefixtures("all_heads")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_messages_may_be_lost_and_doubled(kind: str, seed: int) -> None:
    sampling = SAMPLINGS["sampled"]
    plain, _ = texts_of(make_runner(), sampling, own_drafts=False)
    drafted, _ = texts_of(
        runner(kind), sampling, own_drafts=True, link=lambda engine: BadLink(engine, seed)
    )
    assert drafted == plain


@pytest.mark.usefixtures("all_heads")
@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_of_the_message_goes_first_and_the_context_ends_it_all(kind: str) -> None:
    made = runner(kind, max_model_len=48)
    engine = TargetEngine(made, NoMaskSource(), EPOCH)
    prompt = random_prompt(1, 12)
    text = reference_greedy(prompt, 36)
    engine.submit(opening("s", GREEDY, 12), "r")
    message = verifying("s", 1, prompt, text[:3], run_on=60)
    engine.submit(structs.replace(message, own_drafts=True), "r")
    got: list[int] = []
    for verdict in drain(engine):
        assert isinstance(verdict, Verdict)
        draft = text[:3] if verdict.part == 0 else []
        assert verdict.part > 0 or not verdict.own
        got += [*draft[: verdict.num_accepted], *verdict.own, verdict.token]
    assert got == text
    engine.runner.pool.check(engine.block_tables())


@pytest.mark.parametrize("length", [1, 2, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_a_message_may_fix_the_length(
    kind: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all its drafts, also where none would pay; longer than proposed where the kind can."""
    monkeypatch.setattr(DraftLengths, "choose", lambda self, num_sessions: 0)
    sampling = SAMPLINGS["sampled"]
    plain, _ = texts_of(make_runner(), sampling, own_drafts=False)
    drafted, verdicts = texts_of(runner(kind), sampling, own_drafts=True, own_length=length)
    assert drafted == plain
    made = min(length, NUM_HEADS) if kind == "medusa" else length
    lengths = [verdict.num_own_drafted for verdict in verdicts]
    assert lengths.count(0) == 3, "all but the first verdict of each text had a draft"
    assert set(lengths) == {0, made}
    assert sum(len(verdict.own) for verdict in verdicts) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_sessions_of_fixed_and_chosen_lengths_share_passes(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DraftLengths, "choose", lambda self, num_sessions: 2)
    monkeypatch.setattr(DraftTrees, "choose", lambda self, num_sessions, length: [])
    target = Link(TargetEngine(runner(kind), NoMaskSource(), EPOCH))
    sampling = SAMPLINGS["sampled"]
    clients = [
        Client(
            f"s{i}",
            random_prompt(i, 9 + 17 * i),
            sampling,
            60,
            target,
            run_on=lambda: 7,
            own_drafts=True,
            own_length=length,
        )
        for i, length in enumerate((0, 1, 3, 0, 1))
    ]
    texts = run_clients(clients)
    for i, client in enumerate(clients):
        prompt = random_prompt(i, 9 + 17 * i)
        alone = Client("s", prompt, sampling, 60, Link(plain_target()), run_on=lambda: 7)
        assert run_clients([alone]) == [texts[i]]
        lengths = {verdict.num_own_drafted for verdict in client.verdicts}
        assert lengths == {0, client.own_length or 2}


def plain_target() -> TargetEngine:
    return TargetEngine(make_runner(), NoMaskSource(), EPOCH)


def test_a_length_out_of_range_is_refused() -> None:
    engine = plain_target()
    engine.submit(opening("s", GREEDY, 8), "r")
    for seq, length in enumerate((-1, 65), start=1):
        message = structs.replace(
            verifying("s", seq, random_prompt(1, 8), []), own_drafts=True, own_length=length
        )
        engine.submit(message, "r")
        (failed,) = drain(engine)
        assert isinstance(failed, Failed)
        assert failed.message == f"own_length must be within 0..64, got {length}"


def test_states_are_those_of_the_model() -> None:
    """Also where only some rows of a pass give logits."""
    for attention in ("auto", "reference"):
        made = runner("mtp", attention=attention)
        table = made.pool.new_table()
        table.resize(9)
        logits = made.forward([SequenceRows(table, 0, random_prompt(2, 9), 3)])
        assert made.hidden is not None
        assert made.hidden.shape == (9, WIDTH)
        head = made.products()[-1]
        torch.testing.assert_close(head(made.hidden[-3:]).float(), logits, rtol=1e-4, atol=1e-4)
        table.free()


def test_all_layers_are_no_early_exit() -> None:
    with pytest.raises(ValueError, match="must be below the 2 layers of the model, got 2"):
        make_runner(early_exit=2)
