"""Candidates of a draft model beside its draft: asked for, verified, and the same text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from models.engine import target
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import MaskSource, NoMaskSource
from models.kv.block_pool import BlockTable
from models.protocol.messages import (
    MAX_RANKS,
    MAX_SIDE_TOKENS,
    Failed,
    Proposal,
    Sampling,
    Verdict,
    Verify,
)
from models.sampling.draft_tree import DraftTree, with_side_tokens
from tests.cases.messages import opening, proposing, verifying
from tests.cases.wrong_trees import take_any_leaf
from tests.fakes.engines import (
    CONSTRAINT,
    EOS_ID,
    EPOCH,
    VOCAB_SIZE,
    BadLink,
    Client,
    Link,
    ScriptedMasks,
    make_runner,
    random_prompt,
    run_clients,
)
from tests.models.engine.drafting.test_own_drafts import runner
from tests.models.engine.drafting.test_tree_drafts import SAMPLED, SAMPLINGS

NOISE = 0.08  # of the draft model: about a third of its tokens are right
NUM_TOKENS = 60
PROMPT = random_prompt(3, 21)


def texts_of(
    made: ModelRunner | TargetEngine,
    sampling: Sampling,
    *,
    k: int = 4,
    num_ranks: Callable[[int], int] = lambda number: 4,
    num_sessions: int = 3,
    link: Callable[[Any], Link] = Link,
    masks: Callable[[], MaskSource] = NoMaskSource,
    **terms: Any,
) -> tuple[list[list[int]], list[Client]]:
    """Sessions on one target, each with k drafted tokens a round; `num_ranks` is by session."""
    engine = made if isinstance(made, TargetEngine) else TargetEngine(made, masks(), EPOCH)
    to_target = link(engine)
    to_draft = link(DraftEngine(make_runner(noise=NOISE), masks(), EPOCH)) if k else None
    clients = clients_of(
        to_target, to_draft, sampling, k=k, num_ranks=num_ranks, num_sessions=num_sessions, **terms
    )
    return run_clients(clients), clients


def clients_of(
    to_target: Link,
    to_draft: Link | None,
    sampling: Sampling,
    *,
    k: int = 4,
    num_ranks: Callable[[int], int] = lambda number: 4,
    num_sessions: int = 3,
    **terms: Any,
) -> list[Client]:
    return [
        Client(
            f"s{i}",
            random_prompt(i, 5 + 11 * i),
            msgspec.structs.replace(sampling, seed=sampling.seed + i),
            NUM_TOKENS,
            to_target,
            to_draft,
            num_draft_tokens=lambda: k,
            num_ranks=num_ranks(i),
            **terms,
        )
        for i in range(num_sessions)
    ]


def num_side(clients: Sequence[Client]) -> int:
    """Tokens accepted beside drafts."""
    return sum(len(verdict.side) for client in clients for verdict in client.verdicts)


def num_verified(clients: Sequence[Client]) -> int:
    return sum(verdict.num_side_drafted for client in clients for verdict in client.verdicts)


# --- texts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["auto", "reference"])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_side_tokens_are_accepted_and_the_text_is_the_same(name: str, attention: str) -> None:
    plain, _ = texts_of(make_runner(attention=attention), SAMPLINGS[name], k=0)
    chains, drafted = texts_of(make_runner(attention=attention), SAMPLINGS[name], num_ranks=_one)
    texts, clients = texts_of(make_runner(attention=attention), SAMPLINGS[name])
    assert texts == chains == plain
    assert num_side(drafted) == num_verified(drafted) == 0
    assert num_side(clients) > 5
    assert sum(len(c.verdicts) for c in clients) < sum(len(c.verdicts) for c in drafted)


def _one(number: int) -> int:
    return 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_and_so_are_logprobs(dtype: Any) -> None:
    sampling = msgspec.structs.replace(SAMPLED, num_logprobs=256)
    found = []
    for k in (0, 4):
        _, clients = texts_of(make_runner(dtype=dtype), sampling, k=k)
        found.append([[e for v in c.verdicts for e in v.logprobs][:NUM_TOKENS] for c in clients])
    assert num_side(clients) > 10
    assert [len(entries) for entries in found[1]] == [NUM_TOKENS] * 3
    assert found[0] == found[1]


def test_chains_and_trees_share_passes() -> None:
    plain, _ = texts_of(make_runner(), SAMPLED, k=0, num_sessions=5)
    texts, clients = texts_of(make_runner(), SAMPLED, num_ranks=lambda i: 1 + i % 3, num_sessions=5)
    assert texts == plain
    assert [num_side([client]) > 0 for client in clients] == [False, True, True, False, True]
    for verdict in (one for client in clients for one in client.verdicts):
        timing = verdict.timing  # of all in the pass
        assert verdict.num_side_drafted <= timing.num_side_rows < timing.num_rows


def test_everybody_in_a_pass_is_told_of_its_side_rows() -> None:
    engine = TargetEngine(make_runner(), NoMaskSource(), EPOCH)
    for name in ("chain", "tree"):
        engine.submit(opening(name, SAMPLED, len(PROMPT)), None)
        engine.submit(verifying(name, 1, PROMPT, []), None)
    tokens = {reply.session_id: reply.token for reply in answers(engine)}
    for name, side_tokens in (("chain", []), ("tree", [(0, 5), (1, 6), (1, 7)])):
        message = verifying(name, 2, [*PROMPT, tokens[name]], [1, 2], base_len=len(PROMPT))
        engine.submit(msgspec.structs.replace(message, side_tokens=side_tokens), None)
    timings = {verdict.session_id: verdict.timing for verdict in answers(engine)}
    assert len(timings) == 2
    assert {(t.num_rows, t.num_side_rows, t.num_sessions) for t in timings.values()} == {(9, 3, 2)}


@pytest.mark.parametrize("kind", ["medusa", "mtp", "eagle3", "early exit"])
def test_with_a_target_that_drafts_as_well(kind: str) -> None:
    """Heads draft for plain steps behind a verdict with a side token: of the states of its path."""
    plain, _ = texts_of(make_runner(), SAMPLED, k=0)
    made = runner(kind)
    texts, clients = texts_of(made, SAMPLED, own_drafts=True, own_length=2, run_on=lambda: 3)
    assert texts == plain
    assert num_side(clients) > NUM_TOKENS // 8
    assert sum(verdict.num_own_drafted for c in clients for verdict in c.verdicts) > NUM_TOKENS // 4
    for client in clients:
        for verdict in client.verdicts:
            assert not (verdict.own and verdict.side)
            assert verdict.part == 0 or verdict.num_side_drafted == 0


@pytest.mark.parametrize("seed", range(4))
def test_links_that_lose_double_and_reorder(seed: int) -> None:
    plain, _ = texts_of(make_runner(), SAMPLED, k=0)
    texts, clients = texts_of(make_runner(), SAMPLED, link=lambda engine: BadLink(engine, seed))
    assert texts == plain
    assert num_side(clients) > 10


@pytest.mark.parametrize("num_tokens", [256, 304])
def test_small_caches_preempt_and_lose_no_block(num_tokens: int) -> None:
    plain, _ = texts_of(make_runner(), SAMPLED, k=0, num_sessions=5)
    made = make_runner(kv_cache_tokens=num_tokens, max_model_len=128)
    engine = TargetEngine(made, NoMaskSource(), EPOCH)
    draft = DraftEngine(make_runner(noise=NOISE), NoMaskSource(), EPOCH)
    to_target, to_draft = Link(engine), Link(draft)
    clients = clients_of(to_target, to_draft, SAMPLED, num_sessions=5)
    waiting = list(clients)
    for _ in range(1000):
        replies = to_draft.tick(), to_target.tick()
        for client in list(waiting):
            client.on_replies(*replies)
            if client.is_done:
                client.close()
                waiting.remove(client)
        made.pool.check(engine.block_tables())
    assert [client.text for client in clients] == plain
    assert num_side(clients) > 0
    assert engine.load().num_preemptions > 0
    assert engine.num_used_blocks == 0


def test_where_a_pass_has_no_rows_left_drafts_are_chains() -> None:
    """Three sessions with 5 rows each, and up to 12 side tokens each, of 24 rows a pass."""
    plain, _ = texts_of(make_runner(), SAMPLED, k=0)
    texts, few = texts_of(make_runner(max_num_batched_tokens=24), SAMPLED)
    assert texts == plain
    _, all_of_them = texts_of(make_runner(), SAMPLED)
    assert 0 < num_verified(few) < num_verified(all_of_them)


def test_what_side_tokens_leave_is_found_in_the_prefix_cache() -> None:
    engine = TargetEngine(make_runner(), NoMaskSource(), EPOCH)
    plain, clients = texts_of(engine, SAMPLED)
    assert num_side(clients) > 10
    assert engine.load().prefix_hits == 0
    prompts = [random_prompt(i, 5 + 11 * i) + text for i, text in enumerate(plain)]
    texts = []
    for each in (engine, TargetEngine(make_runner(enable_prefix_caching=False), NoMaskSource(), 7)):
        link = Link(each)
        greedy = SAMPLINGS["greedy"]
        texts.append(
            run_clients([Client(f"p{i}", p, greedy, 20, link) for i, p in enumerate(prompts)])
        )
    assert texts[0] == texts[1]
    assert engine.load().prefix_hits > 100


def test_the_last_place_of_the_context() -> None:
    """What has no room is left out: the text goes as far as without drafts."""
    made = make_runner(max_model_len=64)
    plain, _ = texts_of(make_runner(), SAMPLED, k=0, num_sessions=1)
    target_link = Link(TargetEngine(made, NoMaskSource(), EPOCH))
    draft_link = Link(DraftEngine(make_runner(noise=NOISE), NoMaskSource(), EPOCH))
    client = Client(
        "s0", random_prompt(0, 5), SAMPLED, 59, target_link, draft_link, lambda: 6, num_ranks=4
    )
    assert run_clients([client]) == [plain[0][:59]]
    assert num_side([client]) > 5


# --- where they are left out -------------------------------------------------------------------


def test_where_paths_beside_a_draft_cannot_be_verified_it_is_a_chain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on pages of a GPU."""
    plain, _ = texts_of(make_runner(), SAMPLED, k=0)
    made = make_runner()
    monkeypatch.setattr(type(made.backend), "stores_shared_rows", False)
    texts, clients = texts_of(made, SAMPLED)
    assert texts == plain
    assert any(ids for c in clients for proposal in c.proposals for ids in proposal.candidates)
    assert num_verified(clients) == 0


def test_under_a_constraint_drafts_are_chains() -> None:
    terms: dict[str, Any] = {"masks": ScriptedMasks, "constraint": CONSTRAINT, "eos_ids": [EOS_ID]}
    plain, _ = texts_of(make_runner(), SAMPLED, k=0, **terms)
    texts, clients = texts_of(make_runner(), SAMPLED, **terms)
    assert texts == plain
    assert num_verified(clients) == 0


def test_under_rejection_drafts_are_chains() -> None:
    rejection = msgspec.structs.replace(SAMPLED, verification="rejection")
    found = []
    for candidates in ([], [(0, 5), (1, 7)]):
        engine = TargetEngine(make_runner(), NoMaskSource(), EPOCH)
        engine.submit(opening("s", rejection, len(PROMPT)), None)
        message = verifying("s", 1, PROMPT, [1, 2])
        engine.submit(msgspec.structs.replace(message, side_tokens=candidates), None)
        (verdict,) = answers(engine)
        assert isinstance(verdict, Verdict)
        found.append((verdict.num_accepted, verdict.token, verdict.side, verdict.num_side_drafted))
    assert found[0] == found[1]
    assert found[0][3] == 0


# --- messages ----------------------------------------------------------------------------------


def answers(engine: TargetEngine | DraftEngine) -> list[Any]:
    found = []
    while engine.has_work:
        found += [reply for _, reply in engine.step()]
    return found


def proposal_of(sampling: Sampling, k: int, num_ranks: int, guess: Sequence[int] = ()) -> Proposal:
    engine = DraftEngine(make_runner(noise=NOISE), NoMaskSource(), EPOCH)
    engine.submit(opening("s", sampling, len(PROMPT)), None)
    message = proposing("s", 1, PROMPT, k, guess=guess)
    engine.submit(msgspec.structs.replace(message, num_ranks=num_ranks), None)
    (proposal,) = answers(engine)
    assert isinstance(proposal, Proposal)
    return proposal


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), SAMPLED], ids=["greedy", "sampled"])
def test_candidates_are_what_is_drafted_without_those_before_them(sampling: Sampling) -> None:
    proposal = proposal_of(sampling, 3, 4)
    assert proposal.tokens == proposal_of(sampling, 3, 1).tokens
    assert proposal_of(sampling, 3, 1).candidates == []
    assert [len(ids) for ids in proposal.candidates] == [3, 3, 3]
    banned = [proposal.tokens[0]]
    for candidate in proposal.candidates[0]:
        bias = tuple((token, -1e5) for token in banned)
        without = msgspec.structs.replace(sampling, logit_bias=bias)
        assert proposal_of(without, 1, 1).tokens == [candidate]
        banned.append(candidate)


@pytest.mark.parametrize("num_right", [0, 2, 4])
def test_candidates_are_the_same_behind_a_guess(num_right: int) -> None:
    step_by_step = proposal_of(SAMPLED, 6, 4)
    guess = step_by_step.tokens[:num_right] + [1, 2, 3][: 5 - num_right]
    guessed = proposal_of(SAMPLED, 6, 4, guess)
    assert guessed.tokens == step_by_step.tokens
    assert guessed.candidates == step_by_step.candidates


def test_under_rejection_and_in_chains_of_steps_there_are_none() -> None:
    rejection = msgspec.structs.replace(SAMPLED, verification="rejection")
    assert not any(proposal_of(rejection, 3, 4).candidates)
    engine = DraftEngine(make_runner(noise=NOISE), NoMaskSource(), EPOCH)
    engine.chains = True
    engine.submit(opening("s", SAMPLED, len(PROMPT)), None)
    engine.submit(msgspec.structs.replace(proposing("s", 1, PROMPT, 3), num_ranks=4), None)
    (proposal,) = answers(engine)
    assert proposal.tokens == proposal_of(SAMPLED, 3, 4).tokens
    assert proposal.candidates == [[], [], []]


@pytest.mark.parametrize("num_ranks", [0, -1, MAX_RANKS + 1, 2**40])
def test_odd_numbers_of_candidates_are_refused(num_ranks: int) -> None:
    engine = DraftEngine(make_runner(noise=NOISE), NoMaskSource(), EPOCH)
    engine.submit(opening("s", SAMPLED, len(PROMPT)), None)
    engine.submit(msgspec.structs.replace(proposing("s", 1, PROMPT, 3), num_ranks=num_ranks), None)
    (failed,) = answers(engine)
    assert isinstance(failed, Failed)
    assert failed.message == f"num_ranks must be within 1..{MAX_RANKS}, got {num_ranks}"


@pytest.mark.parametrize(
    ("side_tokens", "complaint"),
    [
        ([(0, 5)] * (MAX_SIDE_TOKENS + 1), "side_tokens must be at most 64, got 65"),
        ([(2, 5)], "side_tokens must be beside the draft's 2 tokens, got place 2"),
        ([(-1, 5)], "side_tokens must be beside the draft's 2 tokens, got place -1"),
        ([(2**40, 5)], f"side_tokens must be beside the draft's 2 tokens, got place {2**40}"),
        ([(0, -1)], f"token ids must be within 0..{VOCAB_SIZE - 1}, got -1..2"),
        ([(0, 2**40)], f"token ids must be within 0..{VOCAB_SIZE - 1}, got 1..{2**40}"),
    ],
)
def test_odd_side_tokens_are_refused(side_tokens: list[tuple[int, int]], complaint: str) -> None:
    engine = TargetEngine(make_runner(), NoMaskSource(), EPOCH)
    engine.submit(opening("s", SAMPLED, len(PROMPT)), None)
    message = verifying("s", 1, PROMPT, [1, 2])
    engine.submit(msgspec.structs.replace(message, side_tokens=side_tokens), None)
    (failed,) = answers(engine)
    assert isinstance(failed, Failed)
    assert failed.message == complaint
    engine.submit(verifying("s", 2, PROMPT, [1, 2]), None)
    assert isinstance(answers(engine)[0], Verdict), "the session goes on"


def test_messages_come_back_whole_and_those_of_older_peers_are_read() -> None:
    message = msgspec.structs.replace(
        verifying("s", 1, PROMPT, [1, 2]), side_tokens=[(0, 3), (1, 4)]
    )
    packed = msgspec.msgpack.encode(message)
    assert msgspec.msgpack.decode(packed, type=Verify) == message
    old = msgspec.to_builtins(message)
    del old["side_tokens"]
    assert msgspec.convert(old, Verify).side_tokens == []
    proposal = proposal_of(SAMPLED, 3, 3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(proposal), type=Proposal) == proposal
    with pytest.raises(msgspec.ValidationError, match="side_tokens"):
        msgspec.convert(old | {"side_tokens": [[0]]}, Verify)


# --- deliberate mistakes -----------------------------------------------------------------------


def with_keys_of_the_draft(patch: pytest.MonkeyPatch) -> None:
    adopt = BlockTable.adopt
    patch.setattr(
        BlockTable, "adopt", lambda self, first, ids: adopt(self, len(self.block_ids), [])
    )


def with_noise_of_another_position(patch: pytest.MonkeyPatch) -> None:
    path = DraftTree.path_tokens
    patch.setattr(DraftTree, "path_tokens", lambda tree, row: path(tree, row)[:-1])


def with_its_parent_a_place_late(patch: pytest.MonkeyPatch) -> None:
    made = with_side_tokens

    def late(anchor: int, draft: Any, side_tokens: Any, eos_ids: Any) -> DraftTree | None:
        tree = made(anchor, draft, side_tokens, eos_ids)
        if tree is None:
            return None
        first = 1 + len(draft)
        moved = [min(parent + 1, len(draft)) for parent in tree.parents[first:]]
        return DraftTree(tree.tokens, tree.parents[:first] + moved)

    patch.setattr(target, "with_side_tokens", late)


@pytest.mark.parametrize(
    "mistake",
    [
        with_keys_of_the_draft,
        with_noise_of_another_position,
        take_any_leaf,
        with_its_parent_a_place_late,
    ],
)
def test_a_mistake_is_seen(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = texts_of(make_runner(), SAMPLED, k=0)
    texts, right = texts_of(make_runner(), SAMPLED)
    assert texts == plain
    mistake(monkeypatch)
    texts, wrong = texts_of(make_runner(enable_prefix_caching=False), SAMPLED)
    # A tree whose leaves are at the wrong place is no lie to the text, it only brings nothing.
    assert texts != plain or num_side(wrong) < num_side(right) // 2
