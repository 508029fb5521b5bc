"""Logprobs of generated and of prompt tokens, through real engines and over bad links."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
import torch

from models.engine.logprobs import token_logprobs
from models.engine.terms import complaint
from models.protocol.messages import EngineReply, EngineRequest, Sampling, TokenLogprobs, Verdict
from models.protocol.packed_logprobs import unpack
from tests.cases.messages import opening, verifying
from tests.fakes.engines import (
    BLOCK,
    CONSTRAINT,
    EOS_ID,
    BadLink,
    Client,
    Link,
    ScriptedMasks,
    lowest_third,
    make_draft,
    make_target,
    random_prompt,
    reference_model,
    run_clients,
)
from tests.models.engine.asked import TargetOf

pytestmark = pytest.mark.every_engine

PROMPT = random_prompt(3, 41)
SEEDED = Sampling(seed=5, num_logprobs=4)
OF_PROMPT = Sampling(temperature=0, num_prompt_logprobs=3)


def reference(ids: list[int]) -> torch.Tensor:
    """Log-probabilities of the token behind each prefix, [len(ids), V]."""
    with torch.inference_mode():
        return torch.log_softmax(reference_model()(torch.tensor([ids])).logits[0], dim=1)


def assert_entries(entries: list[TokenLogprobs], ids: list[int], first: int, num_top: int) -> None:
    """`entries` are those of ids[first:]."""
    assert [entry.token for entry in entries] == ids[first:]
    for entry, expected in zip(entries, reference(ids)[first - 1 :], strict=False):
        assert entry.logprob == pytest.approx(expected[entry.token].item(), abs=1e-4)
        assert entry.rank == 1 + int((expected > expected[entry.token] + 1e-6).sum())
        top = expected.topk(num_top)
        assert [token for token, _ in entry.top] == top.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(top.values.tolist(), abs=1e-4)


def of_client(client: Client) -> list[TokenLogprobs]:
    entries = [entry for verdict in client.verdicts for entry in verdict.logprobs]
    return entries[: len(client.text)]


def decode(sampling: Sampling, k: int, **limits: Any) -> Client:
    client = Client(
        session_id="s",
        prompt=PROMPT,
        sampling=sampling,
        num_tokens=14,
        target_link=Link(make_target(**limits)),
        draft_link=Link(make_draft(noise=0.02)) if k else None,
        num_draft_tokens=lambda: k,
        run_on=lambda: 0 if k else 3,
        eos_ids=[EOS_ID],
    )
    run_clients([client])
    assert all(len(verdict.logprobs) == verdict.num_accepted + 1 for verdict in client.verdicts)
    return client


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("k", [0, 3])
def test_logprobs_are_the_models_own(k: int, verification: str) -> None:
    """Neither temperature nor penalties, bias and rules touch them."""
    sampling = Sampling(
        seed=5,
        temperature=1.7,
        top_k=50,
        presence_penalty=1.0,
        logit_bias=((3, 2.0),),
        min_tokens=20,
        bad_words=((7,),),
        num_logprobs=4,
        verification=verification,
    )
    client = decode(sampling, k)
    assert_entries(of_client(client), PROMPT + client.text, len(PROMPT), 4)


def test_logprobs_do_not_depend_on_the_draft() -> None:
    plain = decode(SEEDED, 0)
    for k in (1, 3, 6):
        drafted = decode(SEEDED, k)
        assert drafted.text == plain.text
        assert of_client(drafted) == of_client(plain)  # bit for bit
        assert any(verdict.num_accepted for verdict in drafted.verdicts)


def test_none_are_sent_where_none_are_asked_for(target_of: TargetOf) -> None:
    verdicts = target_of(sampling=Sampling()).ask(PROMPT, run_on=2)
    assert len(verdicts) == 3
    assert all(verdict.logprobs == verdict.prompt_logprobs == [] for verdict in verdicts)


def test_zero_names_the_token_alone(target_of: TargetOf) -> None:
    [verdict] = target_of(sampling=Sampling(num_logprobs=0)).ask(PROMPT)
    [entry] = verdict.logprobs
    assert (entry.token, entry.top) == (verdict.token, ())


@pytest.mark.parametrize("num_top", [4, 200])
def test_of_allowed_tokens_alone(target_of: TargetOf, num_top: int) -> None:
    """As if the model had no others: rows of a draft too, each by its own mask."""
    sampling = Sampling(temperature=0, num_logprobs=num_top, masks_logprobs=True)
    draft = sorted(lowest_third([]))[:1]
    target = target_of(make_target(ScriptedMasks()), sampling=sampling)
    target.open(constraint=CONSTRAINT, prompt_len=len(PROMPT))
    verdicts = target.ask(PROMPT, draft, run_on=1)
    text: list[int] = []
    for verdict in verdicts:
        assert len(verdict.logprobs) == verdict.num_accepted + 1
        for entry in verdict.logprobs:
            allowed = torch.tensor(sorted(lowest_third(text)))
            own = reference(PROMPT + text)[-1][allowed].log_softmax(0)
            top = own.topk(min(num_top, len(allowed)))
            assert [token for token, _ in entry.top] == allowed[top.indices].tolist()
            values = [value for _, value in entry.top]
            assert values == pytest.approx(top.values.tolist(), abs=1e-4)
            assert (entry.token, entry.rank) == (entry.top[0][0], 1)
            text.append(entry.token)
    assert len(text) == 2 + verdicts[0].num_accepted


@pytest.mark.parametrize("num_rows", [1, 5, 70])
def test_an_entry_does_not_depend_on_its_batch(num_rows: int) -> None:
    logits = 4 * torch.randn(num_rows, 1003, generator=torch.Generator().manual_seed(1))
    tokens = [random.Random(i).randrange(1003) for i in range(num_rows)]
    together = token_logprobs(logits, tokens, 5)
    alone = [token_logprobs(logits[i : i + 1], tokens[i : i + 1], 5)[0] for i in range(num_rows)]
    assert together == alone


# --- the prompt -----------------------------------------------------------------------------------


def of_prompt(verdict: Verdict) -> list[TokenLogprobs]:
    return [unpack(entry) for entry in verdict.prompt_logprobs]


@pytest.mark.parametrize("max_num_batched_tokens", [4, 9, 16, 40, 64])
@pytest.mark.parametrize("num_drafted", [0, 2])
def test_prompt_logprobs_over_chunks_of_any_size(
    target_of: TargetOf, max_num_batched_tokens: int, num_drafted: int
) -> None:
    target = target_of(sampling=OF_PROMPT, max_num_batched_tokens=max_num_batched_tokens)
    first, *others = target.ask(PROMPT, [1, 2, 3][:num_drafted], run_on=2)
    assert_entries(of_prompt(first), PROMPT, 1, 3)
    assert [verdict.prompt_logprobs for verdict in others] == [[]] * 2


@pytest.mark.parametrize("length", [1, 2])
def test_a_first_token_has_no_logprob(target_of: TargetOf, length: int) -> None:
    (verdict,) = target_of(sampling=OF_PROMPT).ask(PROMPT[:length])
    assert len(verdict.prompt_logprobs) == length - 1


def test_a_pass_never_holds_logits_of_the_whole_prompt(
    target_of: TargetOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of(sampling=OF_PROMPT, max_num_batched_tokens=8)
    forward, shapes = target.engine.runner.forward, []

    def watched(sequences: list) -> torch.Tensor:
        logits = forward(sequences)
        shapes.append(len(logits))
        return logits

    monkeypatch.setattr(target.engine.runner, "forward", watched)
    target.ask(PROMPT)
    assert max(shapes) <= 8
    assert sum(shapes) == len(PROMPT)


def test_rows_that_are_in_the_cache_are_computed_again_for_them(target_of: TargetOf) -> None:
    """The prefix cache has the KV, but not the logits."""
    target = target_of()
    engine = target.engine
    target.ask(PROMPT, name="parent")
    assert engine.load().num_cached_blocks == len(PROMPT) // BLOCK
    target.open(sampling=OF_PROMPT, prompt_len=len(PROMPT))
    (session,) = (one for one in engine.sessions if one.session_id == "s")
    assert session.needs_prompt_logits
    [verdict] = target.ask(PROMPT)
    assert_entries(of_prompt(verdict), PROMPT, 1, 3)
    assert engine.load().prefix_hits == 0
    assert not session.needs_prompt_logits


def test_what_was_gathered_survives_preemption(target_of: TargetOf) -> None:
    prompt = random_prompt(8, 60)
    target = target_of(sampling=OF_PROMPT, max_num_batched_tokens=16, kv_cache_tokens=256)
    target.send(prompt)
    target.step()
    target.step()
    (session,) = target.engine.sessions
    gathered = list(session.prompt_logprobs)
    assert 0 < len(gathered) < 59
    session.release_blocks()  # as the planner does when an older session needs them
    [verdict] = target.drain()
    assert verdict.prompt_logprobs[: len(gathered)] == gathered
    assert_entries(of_prompt(verdict), prompt, 1, 3)


def test_they_come_again_until_the_sender_has_them_and_never_later(target_of: TargetOf) -> None:
    target = target_of(sampling=OF_PROMPT)
    [first] = target.ask(PROMPT)
    assert target.ask(PROMPT, seq=1) == [first]  # a repeat of the message
    [again] = target.ask(PROMPT)  # the answer was lost with the link
    assert again.prompt_logprobs == first.prompt_logprobs != []
    [later] = target.ask([*PROMPT, first.token])
    assert later.prompt_logprobs == []


def test_a_replica_that_takes_over_is_not_asked_for_them(target_of: TargetOf) -> None:
    """Its first message has generated tokens, so the sender has the prompt's logprobs."""
    target = target_of(sampling=OF_PROMPT, max_num_batched_tokens=8)
    target.open(prompt_len=len(PROMPT))
    [verdict] = target.ask([*PROMPT, 7, 8], seq=5)
    assert verdict.prompt_logprobs == []


def test_another_prompt_under_the_same_id_starts_again(target_of: TargetOf) -> None:
    target = target_of(sampling=OF_PROMPT, max_num_batched_tokens=16)
    target.send(PROMPT)
    target.step()
    other = [*PROMPT[:7], *random_prompt(9, 34)]
    [verdict] = target.ask(other)
    assert_entries(of_prompt(verdict), other, 1, 3)


@pytest.mark.parametrize("seed", range(4))
def test_a_link_that_loses_messages_loses_no_logprobs(seed: int) -> None:
    """Several sessions, masks, prompts in chunks, drafts and a bad link together."""
    target = make_target(ScriptedMasks(lowest_third), max_num_batched_tokens=24)
    link = BadLink(target, seed)
    draft_link = Link(make_draft(ScriptedMasks(lowest_third), noise=0.02))
    clients = []
    for i in range(5):
        prompt = random_prompt(40 + i, 20 + 9 * i)
        sampling = Sampling(seed=i, num_logprobs=2, num_prompt_logprobs=i % 3)
        clients.append(
            Client(
                session_id=f"s{i}",
                prompt=prompt,
                sampling=sampling,
                num_tokens=9,
                target_link=link,
                draft_link=draft_link,
                num_draft_tokens=lambda: 2,
                constraint=CONSTRAINT if i % 2 else None,
                eos_ids=[EOS_ID],
            )
        )
    run_clients(clients)
    for i, client in enumerate(clients):
        assert client.failures == []
        ids = client.prompt + client.text
        assert_entries(of_prompt(client.verdicts[0]), client.prompt, 1, i % 3)
        assert_entries(of_client(client), ids, len(client.prompt), 2)
        assert all(not verdict.prompt_logprobs for verdict in client.verdicts[1:])


def test_terms_and_entries_travel_as_they_are(target_of: TargetOf) -> None:
    target = target_of()
    terms = msgspec.structs.replace(
        SEEDED, num_prompt_logprobs=2, logit_bias=((3, 1.5),), min_tokens=2, bad_words=((1, 2),)
    )
    opened = opening("s", terms, len(PROMPT))
    wire = msgspec.msgpack.encode([opened])
    assert msgspec.msgpack.decode(wire, type=list[EngineRequest]) == [opened]
    target.engine.submit(opened, "r")
    target.engine.submit(verifying("s", 1, PROMPT, []), "r")
    replies = target.drain()
    assert (
        msgspec.msgpack.decode(msgspec.msgpack.encode(replies), type=list[EngineReply]) == replies
    )


def test_tokens_of_a_prompt_without_logits_have_no_logprobs() -> None:
    for sampling, told in ((OF_PROMPT, "token ids must be within 0..7, got 8..8"), (SEEDED, "")):
        terms, asked = opening("s", sampling, 1), verifying("s", 1, [8], [])
        assert complaint(asked, terms, num_input_ids=9, vocab_size=8) == told
