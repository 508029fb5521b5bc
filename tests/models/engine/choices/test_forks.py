"""Choices weighed by a real target: as enumeration has them, however passes were cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Chosen, EngineReply, Failed, Queued, Sampling, Verdict
from models.protocol.packed_logprobs import unpack
from tests.cases.choices.lists import CHOICES, choosing, enumerated
from tests.cases.target import close_all, submit_open, submit_verify
from tests.fakes.engines import (
    BLOCK,
    CONSTRAINT,
    EOS_ID,
    EPOCH,
    drain,
    make_runner,
    make_target,
    random_prompt,
    reference_model,
)

pytestmark = pytest.mark.every_engine

SEEDED = Sampling(seed=5)
PROMPT = random_prompt(3, 41)


def logprobs_after(ids: list[int]) -> list[float]:
    with torch.inference_mode():
        logits = reference_model()(torch.tensor([ids])).logits[0, -1]
    return torch.log_softmax(logits.double(), dim=0).tolist()


def chosen(replies: list[EngineReply]) -> Chosen:
    (reply,) = replies
    assert isinstance(reply, Chosen), reply
    return reply


def ask(
    engine: TargetEngine,
    *,
    prompt: list[int] = PROMPT,
    choices: list[list[int]] = CHOICES,
    sampling: Sampling = SEEDED,
    **terms: Any,
) -> Chosen:
    submit_open(engine, sampling=sampling, prompt_len=len(prompt), **terms)
    engine.submit(choosing("s", 1, prompt, choices), "r")
    return chosen(drain(engine))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 41, 64])
@pytest.mark.parametrize("block_size", [BLOCK, 64])
def test_choices_weigh_what_enumeration_says(length: int, block_size: int) -> None:
    prompt = random_prompt(3, length)
    engine = make_target(block_size=block_size, max_num_batched_tokens=256)
    reply = ask(engine, prompt=prompt)
    expected = enumerated(prompt, CHOICES, [EOS_ID], logprobs_after)
    assert reply.logprobs == pytest.approx(expected, abs=2e-4)
    assert reply.end_token == EOS_ID
    close_all(engine)
    engine.runner.pool.check([])


def test_an_end_is_any_of_several_ids() -> None:
    engine = make_target(max_num_batched_tokens=256)
    reply = ask(engine, eos_ids=[EOS_ID, 17, 20])
    expected = enumerated(PROMPT, CHOICES, [EOS_ID, 17, 20], logprobs_after)
    assert reply.logprobs == pytest.approx(expected, abs=2e-4)
    ends = logprobs_after([*PROMPT, *CHOICES[reply.index]])
    assert ends[reply.end_token] == max(ends[i] for i in (EOS_ID, 17, 20))
    close_all(engine)


def test_all_choices_are_weighed_in_one_pass_behind_the_prompt() -> None:
    engine = make_target(max_num_batched_tokens=256)
    reply = ask(engine)
    assert engine.load().num_passes == 2
    assert reply.timing.num_rows == 4 + 2 + 3 + 1 + 23  # those of the leaves
    assert reply.timing.num_sessions == 5
    close_all(engine)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"max_num_batched_tokens": 16}, id="narrow passes"),
        pytest.param(
            {"max_num_batched_tokens": 256, "kv_cache_tokens": 5 * BLOCK}, id="few blocks"
        ),
        pytest.param({"enable_prefix_caching": False}, id="no prefix cache"),
        pytest.param({"block_size": 64}, id="long blocks"),
        pytest.param({"kv_cache_tokens": 4 * BLOCK}, id="no block to spare"),
    ],
)
def test_weights_are_the_same_however_passes_are_cut(limits: dict[str, Any]) -> None:
    alone = make_target(max_num_batched_tokens=256)
    sampling = Sampling(seed=5, num_logprobs=2, presence_penalty=0.5, logit_bias=((3, 1.5),))
    expected = ask(alone, sampling=sampling)
    close_all(alone)
    engine = make_target(**limits)
    reply = ask(engine, sampling=sampling)
    for name in ("index", "logprobs", "end_token", "token_logprobs"):
        assert getattr(reply, name) == getattr(expected, name), name
    assert engine.load().num_passes >= 2
    close_all(engine)


def test_sessions_that_stream_and_preempt_change_no_weight() -> None:
    alone = make_target(max_num_batched_tokens=256)
    expected = ask(alone)
    close_all(alone)
    engine = make_target(kv_cache_tokens=160, max_num_batched_tokens=64)
    for index in range(3):  # older, and they grow
        prompt = random_prompt(20 + index, 20)
        submit_open(engine, f"older-{index}", sampling=SEEDED, eos_ids=[], prompt_len=20)
        submit_verify(engine, 1, prompt, [], run_on=30, session_id=f"older-{index}")
    engine.step()
    submit_open(engine, sampling=SEEDED, prompt_len=len(PROMPT))
    engine.submit(choosing("s", 1, PROMPT, CHOICES), "r")
    submit_open(engine, "younger", sampling=SEEDED, eos_ids=[], prompt_len=20)
    submit_verify(engine, 1, random_prompt(30, 20), [], run_on=30, session_id="younger")
    replies: list[EngineReply] = []
    for _ in range(500):
        for _, reply in engine.step():
            replies.append(reply)
            if isinstance(reply, Verdict) and reply.is_last:
                engine.close(reply.session_id)
        engine.runner.pool.check(engine.block_tables())
    (reply,) = [reply for reply in replies if isinstance(reply, Chosen)]
    assert (reply.index, reply.logprobs) == (expected.index, expected.logprobs)
    assert engine.load().num_preemptions > 0
    close_all(engine)


def test_logprobs_are_of_the_drawn_tokens_and_their_end() -> None:
    engine = make_target(max_num_batched_tokens=256)
    sampling = Sampling(seed=5, num_logprobs=3, num_prompt_logprobs=1, temperature=0.5)
    reply = ask(engine, sampling=sampling)
    tokens = [*CHOICES[reply.index], reply.end_token]
    assert [entry.token for entry in reply.token_logprobs] == tokens
    for index, entry in enumerate(reply.token_logprobs):
        expected = logprobs_after([*PROMPT, *tokens[:index]])
        assert entry.logprob == pytest.approx(expected[entry.token], abs=1e-4)
        assert len(entry.top) == 3
    of_prompt = [unpack(packed).token for packed in reply.prompt_logprobs]
    assert of_prompt == PROMPT[1:]
    close_all(engine)


def test_a_repeat_is_answered_alike_and_restarts_nothing() -> None:
    engine = make_target(max_num_batched_tokens=32)
    submit_open(engine, sampling=SEEDED, prompt_len=len(PROMPT))
    message = choosing("s", 1, PROMPT, CHOICES)
    engine.submit(message, "first")
    for _ in range(3):
        assert engine.step() == []
        engine.submit(message, "second")
    ((address, reply),) = [answer for _ in range(40) for answer in engine.step()]
    assert address == "second"
    num_passes = engine.load().num_passes
    engine.submit(message, "third")
    assert engine.step() == [("third", reply)]
    assert engine.load().num_passes == num_passes
    close_all(engine)


@pytest.mark.parametrize("end", ["close", "newer message", "new terms"])
def test_forks_end_with_their_message(end: str) -> None:
    engine = make_target(max_num_batched_tokens=32)
    submit_open(engine, sampling=SEEDED, prompt_len=len(PROMPT))
    engine.submit(choosing("s", 1, PROMPT, CHOICES), "r")
    while len(engine.block_tables()) == 1:
        engine.step()
    if end == "close":
        engine.close("s")
    elif end == "newer message":
        submit_verify(engine, 2, PROMPT, [])
    else:
        submit_open(engine, sampling=Sampling(seed=6), prompt_len=len(PROMPT))
    assert len(engine.block_tables()) == (0 if end == "close" else 1)
    assert not any(isinstance(reply, Chosen) for reply in drain(engine))
    close_all(engine)


def test_a_message_that_takes_long_reports_that_it_is_worked_on() -> None:
    runner = make_runner(max_num_batched_tokens=16)
    engine = TargetEngine(runner, NoMaskSource(), EPOCH, queued_interval_s=0.0)
    submit_open(engine, sampling=SEEDED, prompt_len=len(PROMPT))
    engine.submit(choosing("s", 1, PROMPT, CHOICES), "r")
    *notices, last = drain(engine)
    assert {notice.session_id for notice in notices} == {"s"}
    done = [notice.num_rows_done for notice in notices if isinstance(notice, Queued)]
    assert done == sorted(done)
    assert done[-1] > len(PROMPT)
    assert isinstance(last, Chosen)
    close_all(engine)


@pytest.mark.parametrize(
    ("choices", "terms", "code", "words"),
    [
        ([[]], {}, "invalid", "must not be empty"),
        ([], {}, "invalid", "must not be empty"),
        ([[3], [256]], {}, "invalid", "token ids must be within"),
        ([[3]], {"eos_ids": []}, "invalid", "need a token that ends them"),
        ([[3]], {"constraint": CONSTRAINT}, "invalid", "under a constraint"),
        ([[3] * 256], {}, "context_too_long", "a choice of 256"),
    ],
)
def test_what_cannot_be_weighed_is_refused(
    choices: list[list[int]], terms: dict[str, Any], code: str, words: str
) -> None:
    engine = make_target()
    submit_open(engine, prompt_len=len(PROMPT), **terms)
    engine.submit(choosing("s", 1, PROMPT, choices), "r")
    (reply,) = drain(engine)
    assert isinstance(reply, Failed)
    assert (reply.code, words in reply.message) == (code, True), reply
    close_all(engine)
