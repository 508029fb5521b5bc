"""Drafts ahead: the proposals are the same as without, and a hit waits for no step."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from models.engine import runner
from models.engine.draft import DraftEngine
from models.engine.drafting import ahead
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Close, Proposal, Propose, Sampling
from models.scheduler.sessions import Session
from tests.cases.kv_tokens import num_kv_tokens
from tests.cases.messages import opening, proposing
from tests.fakes.engines import EOS_ID, EPOCH, drain, make_runner, random_prompt

pytestmark = pytest.mark.every_engine

PROMPT = random_prompt(1, 12)
K = 4
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "sampled": Sampling(temperature=1.0, seed=5),
    "truncated": Sampling(temperature=0.8, seed=3, top_p=0.9, top_k=20),
}
NOT_AHEAD = {
    "rejection": Sampling(temperature=1.0, seed=5, verification="rejection"),
    "penalties": Sampling(temperature=0.9, seed=3, presence_penalty=1.0),
    "rules": Sampling(temperature=1.2, seed=4, min_tokens=4, bad_words=((7,), (8, 9))),
}
Asked = tuple[str, list[int], int]


class Drafting:
    """A draft engine that is asked as by a router."""

    def __init__(
        self, num_branches: int, clock: Callable[[], float] = time.perf_counter, **limits: Any
    ) -> None:
        self.engine = DraftEngine(make_runner(**limits), NoMaskSource(), EPOCH, clock=clock)
        self.num_branches = num_branches
        self.eos_ids: list[int] = []

    def ask(self, name: str, sampling: Sampling, ids: Sequence[int], k: int = K) -> Proposal:
        """Return the answer, without what the engine does behind it."""
        self.submit(name, sampling, ids, k)
        while True:
            for _, reply in self.engine.step():
                assert isinstance(reply, Proposal)
                assert reply.session_id == name
                self.check()
                return reply

    def submit(self, name: str, sampling: Sampling, ids: Sequence[int], k: int = K) -> Propose:
        if all(one.session_id != name for one in self.engine.sessions):
            opened = opening(name, sampling, len(PROMPT), eos_ids=self.eos_ids)
            self.engine.submit(opened, "r")
        session = self.session(name)
        # The base that a router names: what both have of the text, its last token left out.
        agreed = session.tokens.num_common(0, list(ids))
        base_len = min(agreed, max(len(session.tokens) - 1, 0), len(ids) - 1)
        message = proposing(
            name, session.seq + 1, ids, k, base_len=base_len, ahead=self.num_branches
        )
        self.engine.submit(message, "r")
        return message

    def session(self, name: str) -> Session:
        return next(one for one in self.engine.sessions if one.session_id == name)

    def forks(self, name: str) -> list[Session]:
        return [one for one in self.engine.forks if one.session_id.startswith(f"{name}\0")]

    def idle(self) -> None:
        assert drain(self.engine) == []
        self.check()

    def check(self) -> None:
        self.engine.runner.pool.check(self.engine.block_tables())


def play(sampling: Sampling, seed: int, **limits: Any) -> tuple[list[Asked], list[Proposal]]:
    """Ask for drafts of three texts by turns; verdicts and idle time are of chance."""
    drafting = Drafting(9, **limits)
    rng = random.Random(seed)
    texts = {f"s{i}": random_prompt(i, 12) for i in range(3)}
    asked: list[Asked] = []
    answers: list[Proposal] = []
    for _ in range(12):
        for name, text in texts.items():
            asked.append((name, text, rng.randrange(1, K + 2)))
            answers.append(drafting.ask(name, sampling, text, asked[-1][2]))
            for _ in range(rng.randrange(9)):
                if drafting.engine.has_work:
                    drafting.engine.step()
            texts[name] = verdict(rng, drafting.forks(name), [*text, *answers[-1].tokens])
    return asked, answers


def verdict(rng: random.Random, forks: Sequence[Session], text: list[int]) -> list[int]:
    """Return what a target may have made of a text and its draft: mostly what a fork has."""
    if forks and rng.random() < 0.8:
        ids = rng.choice(forks).tokens.ids
        num_same = next((i for i, (a, b) in enumerate(zip(ids, text, strict=False)) if a != b), -1)
        return ids[: num_same + 1] if num_same >= 0 else ids[: len(text) + 1]
    num_kept = len(text) - rng.randrange(3)
    return [*text[:num_kept], rng.randrange(EOS_ID)]


def num_wrong(asked: Sequence[Asked], answers: Sequence[Proposal], sampling: Sampling) -> int:
    """Return how many answers are not those of an engine that drafts nothing ahead."""
    plain, found = Drafting(0), 0
    for (name, text, k), answer in zip(asked, answers, strict=True):
        alone = plain.ask(name, sampling, text, k)
        found += (answer.tokens, answer.cut) != (alone.tokens, alone.cut)
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SAMPLINGS)
def test_no_proposal_depends_on_it(name: str, seed: int) -> None:
    asked, answers = play(SAMPLINGS[name], seed)
    assert sum(bool(answer.num_ahead) for answer in answers) > len(answers) // 3
    assert num_wrong(asked, answers, SAMPLINGS[name]) == 0


@pytest.mark.parametrize("num_tokens", [192, 256])
def test_no_proposal_depends_on_it_where_blocks_are_few(num_tokens: int) -> None:
    asked, answers = play(SAMPLINGS["sampled"], 0, kv_cache_tokens=num_tokens, max_model_len=96)
    assert any(answer.num_ahead for answer in answers)
    assert num_wrong(asked, answers, SAMPLINGS["sampled"]) == 0


def _long_enough(branches: Sequence[Any], length: int) -> list[Session]:
    return [
        one.fork
        for one in branches
        if one.fork is not None and one.first <= length < len(one.fork.tokens)
    ]


def _any_branch(branches: Sequence[Any], start: int, text: Sequence[int]) -> Any:
    return next(reversed(_long_enough(branches, start + len(text))), None)


def _by_newest_token(branches: Sequence[Any], start: int, text: Sequence[int]) -> Any:
    length = start + len(text)
    found = _long_enough(branches, length)
    return next((one for one in found if one.tokens.ids[length - 1] == text[-1]), None)


def _ticking(ticks: Iterator[int]) -> float:
    return next(ticks) * 1e-5


@pytest.mark.parametrize("mutant", [_any_branch, _by_newest_token])
def test_a_branch_of_another_text_would_be_seen(
    mutant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_longest", mutant)
    # Branches follow the times of passes: on this clock a mistake is seen each time or never.
    clock = partial(_ticking, itertools.count())
    played = [play(SAMPLINGS["greedy"], seed, clock=clock) for seed in range(4)]
    assert any(num_wrong(*each, SAMPLINGS["greedy"]) for each in played)


def test_rows_that_were_not_copied_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "copied_blocks", lambda sequences, block_size: ([], []))
    assert num_wrong(*play(SAMPLINGS["sampled"], 0), SAMPLINGS["sampled"]) > 0


def outcome(fork: Session, text: Sequence[int]) -> list[int]:
    """Return the text that a verdict on a text and its draft must give for a fork to be right."""
    num_same = fork.tokens.num_common(0, text)
    return fork.tokens.ids[: num_same + 1]


def test_a_hit_takes_no_pass() -> None:
    drafting = Drafting(9)
    draft = drafting.ask("s", SAMPLINGS["greedy"], PROMPT).tokens
    drafting.idle()
    forks = [one.tokens.ids for one in drafting.forks("s")]
    text = outcome(drafting.forks("s")[0], [*PROMPT, *draft])
    num_passes = drafting.engine.load().num_passes
    proposal = drafting.ask("s", SAMPLINGS["greedy"], text)
    assert drafting.engine.load().num_passes == num_passes
    assert [*text, *proposal.tokens] in forks
    assert (proposal.num_ahead, proposal.timing.pass_ms) == (K, 0.0)


def test_a_draft_that_is_there_in_part_goes_on_behind_it() -> None:
    drafting = Drafting(1)
    draft = drafting.ask("s", SAMPLINGS["greedy"], PROMPT).tokens
    for _ in range(3):
        drafting.engine.step()
    (fork,) = drafting.forks("s")
    text = outcome(fork, [*PROMPT, *draft])
    num_there = len(fork.tokens) - len(text)
    proposal = drafting.ask("s", SAMPLINGS["greedy"], text)
    assert 0 < num_there < K
    assert (proposal.num_ahead, len(proposal.tokens)) == (num_there, K)
    assert proposal.tokens == Drafting(0).ask("t", SAMPLINGS["greedy"], text).tokens


def test_there_are_no_more_branches_than_were_asked_for() -> None:
    for num_branches in (1, 3):
        drafting = Drafting(num_branches)
        drafting.ask("s", SAMPLINGS["sampled"], PROMPT)
        drafting.idle()
        assert len(drafting.forks("s")) == num_branches


@pytest.mark.parametrize("name", NOT_AHEAD)
def test_terms_that_look_at_the_text_are_not_drafted_ahead(name: str) -> None:
    drafting = Drafting(9)
    drafting.ask("s", NOT_AHEAD[name], PROMPT)
    assert not drafting.engine.has_work
    assert drafting.forks("s") == []


def test_a_hit_does_not_wait_for_the_steps_of_others() -> None:
    drafting = Drafting(9)
    draft = drafting.ask("s", SAMPLINGS["greedy"], PROMPT).tokens
    drafting.idle()
    text = outcome(drafting.forks("s")[0], [*PROMPT, *draft])
    drafting.submit("t", SAMPLINGS["greedy"], random_prompt(7, 12))
    num_passes = drafting.engine.load().num_passes
    assert drafting.ask("s", SAMPLINGS["greedy"], text).num_ahead == K
    assert drafting.engine.load().num_passes == num_passes


def test_a_step_is_held_back_where_questions_are_due() -> None:
    pass_s, away_s = 0.001, 0.05
    now = [0.0]
    drafting = Drafting(9, clock=lambda: now[0])
    forward = drafting.engine.runner.forward

    def slow(sequences: Sequence[Any], *arguments: Any) -> Any:
        now[0] += pass_s * sum(len(each.token_ids) for each in sequences)
        return forward(sequences, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafting.engine.runner, "forward", slow)
        text = PROMPT
        for number in range(4):  # each question comes some 50 ms after the answer
            draft = drafting.ask("s", SAMPLINGS["greedy"], text).tokens
            answered_s = now[0]
            drafting.idle()
            now[0] = answered_s + away_s * (0.96 + 0.03 * number)
            text = outcome(drafting.forks("s")[0], [*text, *draft])
        drafting.ask("s", SAMPLINGS["greedy"], text)
    wait_s, answered_s = drafting.engine.wait_s, now[0]
    assert wait_s(answered_s) == 0.0
    assert 0.0 < wait_s(answered_s + 1.04 * away_s) <= 0.1
    assert wait_s(answered_s + 10.0) == 0.0  # it is late, and is not waited for


def test_a_draft_that_was_asked_for_goes_first() -> None:
    drafting = Drafting(9)
    drafting.ask("s", SAMPLINGS["greedy"], PROMPT)
    drafting.submit("t", SAMPLINGS["greedy"], random_prompt(7, 12))
    for _ in range(K):
        drafting.engine.step()
    assert drafting.forks("s") == []  # nothing of it has begun
    drafting.idle()
    assert drafting.forks("s")


def test_a_session_that_ends_or_has_new_terms_leaves_nothing() -> None:
    drafting = Drafting(9)
    drafting.ask("s", SAMPLINGS["greedy"], PROMPT)
    drafting.ask("t", SAMPLINGS["greedy"], PROMPT)
    drafting.idle()
    assert drafting.forks("s")
    drafting.engine.submit(opening("s", SAMPLINGS["sampled"], len(PROMPT)), "r")
    assert drafting.forks("s") == []
    assert drafting.forks("t")
    for name in ("s", "t"):
        drafting.engine.submit(Close(session_id=name, epoch=EPOCH), "r")
    assert list(drafting.engine.forks) == []
    drafting.check()
    assert num_kv_tokens(drafting.engine) == 0


def test_rows_that_are_lost_before_a_draft_is_looked_at_are_not_forked() -> None:
    drafting = Drafting(9)
    drafting.ask("a", SAMPLINGS["greedy"], PROMPT)
    drafting.session("a").release_blocks()  # another session needed them
    assert drafting.engine.step() == []
    assert drafting.forks("a") == []
    assert drafting.ask("a", SAMPLINGS["greedy"], PROMPT).tokens


def test_an_ended_text_is_not_drafted_on() -> None:
    drafting = Drafting(9)
    drafting.eos_ids = [EOS_ID]
    biased = Sampling(temperature=0, logit_bias=((EOS_ID, 100.0),))
    assert drafting.ask("s", biased, PROMPT).cut == "eos"
    assert not drafting.engine.has_work


def test_a_repeated_message_is_answered_as_before() -> None:
    drafting = Drafting(9)
    message = drafting.submit("s", SAMPLINGS["greedy"], PROMPT)
    first = drain(drafting.engine)
    drafting.engine.submit(message, "r")
    assert drain(drafting.engine) == first
    assert drafting.forks("s")
