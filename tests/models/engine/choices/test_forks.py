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
from tests.fakes.engines import (
    BLOCK,
    CONSTRAINT,
    EOS_ID,
    EPOCH,
    make_runner,
    random_prompt,
    reference_model,
)
from tests.models.engine.asked import AskedTarget, TargetOf

pytestmark = pytest.mark.every_engine

SEEDED = Sampling(seed=5)
PROMPT = random_prompt(3, 41)


def logprobs_after(ids: list[int]) -> list[float]:
    with torch.inference_mode():
        logits = reference_model()(torch.tensor([ids])).logits[0, -1]
    return torch.log_softmax(logits.double(), dim=0).tolist()


def submit(
    target: AskedTarget,
    choices: list[list[int]] = CHOICES,
    prompt: list[int] = PROMPT,
    **terms: Any,
) -> None:
    usual: dict[str, Any] = {"sampling": SEEDED, "prompt_len": len(prompt)}
    target.open(**(usual | terms))
    target.engine.submit(choosing("s", 1, prompt, choices), "r")


def ask(target: AskedTarget, **question: Any) -> Chosen:
    submit(target, **question)
    (reply,) = target.drain()
    assert isinstance(reply, Chosen), reply
    return reply


@pytest.mark.parametrize("length", [1, 15, 16, 17, 41, 64])
@pytest.mark.parametrize("block_size", [BLOCK, 64])
def test_choices_weigh_what_enumeration_says(
    target_of: TargetOf, length: int, block_size: int
) -> None:
    prompt = random_prompt(3, length)
    target = target_of(block_size=block_size, max_num_batched_tokens=256)
    reply = ask(target, prompt=prompt)
    expected = enumerated(prompt, CHOICES, [EOS_ID], logprobs_after)
    assert reply.logprobs == pytest.approx(expected, abs=2e-4)
    assert reply.end_token == EOS_ID


def test_an_end_is_any_of_several_ids(target_of: TargetOf) -> None:
    target = target_of(max_num_batched_tokens=256)
    reply = ask(target, eos_ids=[EOS_ID, 17, 20])
    expected = enumerated(PROMPT, CHOICES, [EOS_ID, 17, 20], logprobs_after)
    assert reply.logprobs == pytest.approx(expected, abs=2e-4)
    ends = logprobs_after([*PROMPT, *CHOICES[reply.index]])
    assert ends[reply.end_token] == max(ends[i] for i in (EOS_ID, 17, 20))


def test_all_choices_are_weighed_in_one_pass_behind_the_prompt(target_of: TargetOf) -> None:
    target = target_of(max_num_batched_tokens=256)
    reply = ask(target)
    assert target.engine.load().num_passes == 2
    assert reply.timing.num_rows == 4 + 2 + 3 + 1 + 23  # those of the leaves
    assert reply.timing.num_sessions == 5


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
def test_weights_are_the_same_however_passes_are_cut(
    target_of: TargetOf, limits: dict[str, Any]
) -> None:
    alone = target_of(max_num_batched_tokens=256)
    sampling = Sampling(seed=5, num_logprobs=2, presence_penalty=0.5, logit_bias=((3, 1.5),))
    expected = ask(alone, sampling=sampling)
    target = target_of(**limits)
    reply = ask(target, sampling=sampling)
    for name in ("index", "logprobs", "end_token", "token_logprobs"):
        assert getattr(reply, name) == getattr(expected, name), name
    assert target.engine.load().num_passes >= 2


def test_sessions_that_stream_and_preempt_change_no_weight(target_of: TargetOf) -> None:
    expected = ask(target_of(max_num_batched_tokens=256))
    target = target_of(kv_cache_tokens=160, max_num_batched_tokens=64)
    engine = target.engine
    terms: dict[str, Any] = {"sampling": SEEDED, "eos_ids": [], "prompt_len": 20}
    for index in range(3):  # older, and they grow
        target.open(f"older-{index}", **terms)
        target.send(random_prompt(20 + index, 20), run_on=30, name=f"older-{index}")
    engine.step()
    submit(target)
    target.open("younger", **terms)
    target.send(random_prompt(30, 20), run_on=30, name="younger")
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


def test_logprobs_are_of_the_drawn_tokens_and_their_end(target_of: TargetOf) -> None:
    target = target_of(max_num_batched_tokens=256)
    sampling = Sampling(seed=5, num_logprobs=3, num_prompt_logprobs=1, temperature=0.5)
    reply = ask(target, sampling=sampling)
    tokens = [*CHOICES[reply.index], reply.end_token]
    assert [entry.token for entry in reply.token_logprobs] == tokens
    for index, entry in enumerate(reply.token_logprobs):
        expected = logprobs_after([*PROMPT, *tokens[:index]])
        assert entry.logprob == pytest.approx(expected[entry.token], abs=1e-4)
        assert len(entry.top) == 3
    of_prompt = [unpack(packed).token for packed in reply.prompt_logprobs]
    assert of_prompt == PROMPT[1:]


def test_a_repeat_is_answered_alike_and_restarts_nothing(target_of: TargetOf) -> None:
    target = target_of(max_num_batched_tokens=32)
    target.open(sampling=SEEDED, prompt_len=len(PROMPT))
    engine, message = target.engine, choosing("s", 1, PROMPT, CHOICES)
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


@pytest.mark.parametrize("end", ["close", "newer message", "new terms"])
def test_forks_end_with_their_message(target_of: TargetOf, end: str) -> None:
    target = target_of(max_num_batched_tokens=32)
    submit(target)
    engine = target.engine
    while len(engine.block_tables()) == 1:
        engine.step()
    if end == "close":
        engine.close("s")
    elif end == "newer message":
        target.send(PROMPT, seq=2)
    else:
        target.open(sampling=Sampling(seed=6), prompt_len=len(PROMPT))
    assert len(engine.block_tables()) == (0 if end == "close" else 1)
    assert not any(isinstance(reply, Chosen) for reply in target.drain())


def test_a_message_that_takes_long_reports_that_it_is_worked_on(target_of: TargetOf) -> None:
    runner = make_runner(max_num_batched_tokens=16)
    engine = TargetEngine(runner, NoMaskSource(), EPOCH, queued_interval_s=0.0)
    target = target_of(engine)
    submit(target)
    *notices, last = target.drain()
    assert {notice.session_id for notice in notices} == {"s"}
    done = [notice.num_rows_done for notice in notices if isinstance(notice, Queued)]
    assert done == sorted(done)
    assert done[-1] > len(PROMPT)
    assert isinstance(last, Chosen)


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
    target_of: TargetOf, choices: list[list[int]], terms: dict[str, Any], code: str, words: str
) -> None:
    target = target_of()
    submit(target, choices, **terms)
    (reply,) = target.drain()
    assert isinstance(reply, Failed)
    assert (reply.code, words in reply.message) == (code, True), reply
