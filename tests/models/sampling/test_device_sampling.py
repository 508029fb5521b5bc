"""What a pass draws is drawn without the host waiting for the device, and is the same."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch

from loadtest.gpu_day.draws import CountedOperations
from models.engine.draft import DraftEngine
from models.engine.logprobs import token_logprobs
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Proposal, Sampling, Verdict
from models.sampling.draft_probs import NUM_PAIRS, _top_ids, _top_ids_unseen
from models.sampling.logits import process_logits
from models.sampling.penalties import RowCounts, TokenHistory
from models.sampling.truncation import WEIGHT_ONE, whole_cut
from models.sampling.verification import draw_ids
from tests.cases.messages import opening, proposing, verifying
from tests.fakes.engines import EPOCH, drain, make_runner, random_prompt, reference_greedy
from tests.harness.sync_watch import SyncWatch

VOCAB_SIZE = 500
TERMS = [
    Sampling(temperature=0),
    Sampling(temperature=0.7, seed=1),
    Sampling(temperature=1.0, top_k=40, seed=2),
    Sampling(temperature=1.3, top_p=0.9, min_p=0.02, seed=3),
    Sampling(temperature=1.0, top_p=0.5, repetition_penalty=1.2, presence_penalty=0.4, seed=4),
    Sampling(temperature=0.8, logit_bias=((5, -100.0), (7, 2.5)), min_tokens=3, seed=5),
    Sampling(temperature=0.8, bad_words=((9,), (3, 4)), seed=6),
]
FORBIDDEN = [(), (), (), (), (), (1, 2), (9,)]  # what min_tokens and bad words come to


def counts(row: int) -> RowCounts | None:
    if row != 4:
        return None
    return TokenHistory(VOCAB_SIZE, 2, [3, 4, 4, 9]).rows(4, [], 1)[0]


def draw(logits: torch.Tensor) -> torch.Tensor:
    rows = range(len(TERMS))
    masks = [None, b"\xff" * 30, None, b"\x0f" * 63, None, None, None]
    scores = process_logits(logits, TERMS, masks, [counts(row) for row in rows], FORBIDDEN)
    return draw_ids(scores, TERMS, [7 + row for row in rows])


def test_nothing_waits_between_logits_and_ids():
    """The meta device takes the branches of a GPU, and refuses to show a value."""
    logits = torch.empty(len(TERMS), VOCAB_SIZE, device="meta")
    with SyncWatch() as watch:
        ids = draw(logits)
    assert watch.waits == []
    assert (ids.shape, ids.device.type) == ((len(TERMS),), "meta")


def test_the_watch_sees_what_waits():
    scores = torch.randn(2, 9)
    with SyncWatch() as watch:
        scores[scores > 0].sum()
        bool((scores > 0).any())
        scores.max().item()
        scores.tolist()
        torch.tensor([1], device="cpu")
        torch.empty(2).to("meta")
        scores.nonzero()
    assert [entry.split(" in ")[0] for entry in watch.waits] == [
        "aten::index with a boolean index",
        "__bool__",
        "item",
        "tolist",
        "tensor(device=...) copies from pageable memory",
        "to(device) without non_blocking",
        "aten::nonzero",
    ]


def random_scores(seed: int, num_rows: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(num_rows, VOCAB_SIZE, generator=generator)
    scores[1] = scores[1].round()  # ties, and a zero of either sign
    scores[2, 5:] = -torch.inf
    scores[3] = 1.5
    scores[4] *= 30
    scores[5] = scores[5].round() * 0.5
    scores[6, ::2] = -torch.inf
    return scores


def reference_cut(row: list[float], top_k: int, top_p: float) -> float:
    """By the words of `sorted_cut`, one token at a time."""
    values = sorted(row, reverse=True)
    kth = values[top_k - 1] if top_k < len(values) else -math.inf
    if top_p == 1.0:
        return kth
    weights = torch.exp(torch.tensor(values) - values[0]).double() * WEIGHT_ONE
    kept = [int(w) if value >= kth else 0 for w, value in zip(weights, values, strict=True)]
    before, lowest = 0, values[0]
    for value, weight in zip(values, kept, strict=True):
        if float(before) >= top_p * float(sum(kept)):
            break
        before, lowest = before + weight, value
    return max(kth, lowest)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("top_k", "top_p"),
    [(VOCAB_SIZE, 0.9), (1, 1.0), (40, 1.0), (40, 0.8), (499, 0.999), (VOCAB_SIZE, 0.05)],
)
def test_whole_rows_are_cut_where_the_definition_cuts_them(seed: int, top_k: int, top_p: float):
    scores = random_scores(seed, num_rows=40)  # more than are sorted at once
    num_rows = len(scores)
    ks = torch.full((num_rows, 1), top_k)
    ps = torch.full((num_rows, 1), top_p, dtype=torch.float64)
    ks[7], ps[7] = VOCAB_SIZE, 1.0  # a row with nothing to cut
    cut = whole_cut(scores, ks, ps)
    for index, row in enumerate(scores.tolist()):
        expected = reference_cut(row, int(ks[index]), float(ps[index]))
        stays = scores[index] >= cut[index]
        assert torch.equal(stays, scores[index] >= expected), index
    assert bool((scores[7] >= cut[7]).all())


def test_a_row_of_nothing_allowed_is_left_alone():
    scores = torch.full((1, VOCAB_SIZE), -torch.inf)
    cut = whole_cut(scores, torch.tensor([[5]]), torch.tensor([[0.5]], dtype=torch.float64))
    assert not bool((scores < cut).any())


@pytest.mark.parametrize(
    ("sampling", "most"),
    [
        (Sampling(temperature=0), 1),
        (Sampling(temperature=0.8, seed=1), 45),
        (Sampling(temperature=0.8, top_p=0.9, seed=1), 85),
        (Sampling(temperature=0.8, top_k=50, top_p=0.9, seed=1), 85),
    ],
)
def test_a_draw_launches_so_many_operations_at_most(sampling: Sampling, most: int):
    """Counted where a GPU's branches are taken; top-p took 782 while it was found by bisection."""
    logits = torch.empty(6, VOCAB_SIZE, device="meta")
    with CountedOperations() as counted:
        draw_ids(process_logits(logits, [sampling] * 6, [None] * 6), [sampling] * 6, range(6))
    assert counted.count <= most, counted.count


def test_the_ids_of_a_draft_row_need_no_look_either():
    scores = random_scores(0)
    expected = _top_ids(scores, NUM_PAIRS)
    with SyncWatch() as watch:
        got = _top_ids_unseen(scores, NUM_PAIRS)
    assert watch.waits == []
    assert torch.equal(got, expected)


@pytest.fixture(scope="module")
def target() -> TargetEngine:
    runner = make_runner(attention="varlen", graphs="eager")
    return TargetEngine(runner, NoMaskSource(), EPOCH)


@pytest.mark.parametrize("name", ["greedy", "sampled"])
def test_a_verify_round_of_two_sessions_waits_once(target: TargetEngine, name: str):
    sampling = Sampling(temperature=0) if name == "greedy" else Sampling(temperature=0.9, seed=8)
    prompts = [random_prompt(seed, 9 + seed) for seed in range(2)]
    for i, prompt in enumerate(prompts):
        target.submit(opening(f"{name}{i}", sampling, len(prompt)), "r")
        target.submit(verifying(f"{name}{i}", 1, prompt, []), "r")
    first = {reply.session_id: reply.token for reply in drain(target)}
    for i, prompt in enumerate(prompts):
        text = [*prompt, first[f"{name}{i}"]]
        target.submit(verifying(f"{name}{i}", 2, text, [1, 2, 3], base_len=len(prompt)), "r")
    with SyncWatch() as watch:
        replies = [reply for _, reply in target.step()]
    assert [entry.split(" in ")[0] for entry in watch.waits] == ["tolist"]
    assert "device.py" in watch.waits[0]
    assert all(isinstance(reply, Verdict) for reply in replies)
    assert len(replies) == 2
    if name == "greedy":
        texts = [reference_greedy(prompt, 2) for prompt in prompts]
        firsts = [reply.token for reply in replies if reply.num_accepted == 0]
        assert firsts == [text[1] for text in texts][: len(firsts)]


def test_a_chain_of_draft_steps_waits_once():
    runner = make_runner(attention="varlen", graphs="eager")
    drafter = DraftEngine(runner, NoMaskSource(), EPOCH)
    drafter.chains = True
    prompt = random_prompt(5, 8)
    drafter.submit(opening("s", Sampling(temperature=0), 8), "r")
    drafter.submit(proposing("s", 1, prompt, 5), "r")
    with SyncWatch() as watch:
        ((_, reply),) = drafter.step()
    assert isinstance(reply, Proposal)
    assert reply.tokens == reference_greedy(prompt, 5)
    assert [entry.split(" in ")[0] for entry in watch.waits] == ["tolist"]


def test_a_draft_step_under_rejection_downloads_once():
    runner = make_runner(attention="varlen", graphs="eager")
    drafter = DraftEngine(runner, NoMaskSource(), EPOCH)
    drafter.chains = True
    sampling = Sampling(temperature=1.0, seed=3, verification="rejection")
    drafter.submit(opening("s", sampling, 8), "r")
    drafter.submit(proposing("s", 1, random_prompt(5, 8), 1), "r")
    with SyncWatch() as watch:
        drafter.step()
    downloads = [entry for entry in watch.waits if entry.startswith("cpu")]
    assert len(downloads) == 1, watch.waits


def test_logprobs_are_downloaded_once():
    with SyncWatch() as watch:
        entries = token_logprobs(random_scores(0)[:3], [7, 8, 9], 5)
    assert [entry.split(" in ")[0] for entry in watch.waits] == ["tolist"]
    assert [(entry.token, len(entry.top)) for entry in entries] == [(7, 5), (8, 5), (9, 5)]


def test_terms_are_all_those_that_sampling_has():
    """A new term must be tried here, or it may wait unseen."""
    tried = {
        field.name
        for field in msgspec.structs.fields(Sampling)
        for terms in TERMS
        if getattr(terms, field.name) != field.default
    }
    others = {"verification", "frequency_penalty"}
    others |= {"num_logprobs", "num_prompt_logprobs", "masks_logprobs"}  # read, not drawn by
    assert {field.name for field in msgspec.structs.fields(Sampling)} == tried | others
