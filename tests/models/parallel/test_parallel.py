"""A model shared by real rank processes over gloo: same logits and text, and what a death does."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import pytest
import torch

from models.layers.linear import can_pack
from models.parallel.ranks import TensorParallel
from models.protocol.messages import Chosen, Close, Sampling
from tests.cases.choices.lists import choosing
from tests.cases.messages import EPOCH, opening
from tests.fakes.engines import Client, Link, run_clients
from tests.harness.rank_processes import SharedEngine, shared_engine, start_ranks
from tests.harness.runs import engines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.matrix]

VOCAB_SIZE = 512
SIZES = (1, 2, 4)
# Shapes of the demo pair in small: heads, key heads and FFN divisible by 4, tied embeddings.
SHAPE = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "hidden_size": 4 * engines.head_dim(),
    "head_dim": engines.head_dim(),
}
NOTICE_S = 30.0


@pytest.fixture(scope="module")
def target_path(make_tiny_llama: Callable[..., str]) -> str:
    return make_tiny_llama(seed=1, **SHAPE)


@pytest.fixture(scope="module")
def targets(target_path: str) -> Iterator[dict[int, SharedEngine]]:
    """The same target, shared by 1, 2 and 4 processes."""
    with contextlib.ExitStack() as stack:
        yield {n: stack.enter_context(shared_engine("target", n, target_path)) for n in SIZES}


@pytest.fixture(scope="module")
def drafts(make_tiny_llama: Callable[..., str]) -> Iterator[dict[int, SharedEngine]]:
    path = make_tiny_llama(seed=1, **SHAPE, num_hidden_layers=1)
    with contextlib.ExitStack() as stack:
        yield {n: stack.enter_context(shared_engine("draft", n, path)) for n in (1, 2)}


def _text(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


@pytest.mark.every_engine
@pytest.mark.parametrize("size", SIZES[1:])
def test_logits_are_those_of_one_process(targets: dict[int, SharedEngine], size: int) -> None:
    first, second = _text(230, 0), _text(40, 1)
    # A prompt longer than an announcement's frame, a chunk without logits, verify rows beside a
    # stranger's, a roll back.
    passes = [
        [("a", 0, first, 230)],
        [("b", 0, second, 0)],
        [("a", 230, first[:6], 6), ("b", 40, second[:1], 1)],
        [("a", 100, second[:9], 9)],
    ]
    for rows in passes:
        expected = targets[1].forward(*rows)
        torch.testing.assert_close(targets[size].forward(*rows), expected, rtol=0, atol=1e-4)


@pytest.mark.every_engine
@pytest.mark.parametrize("size", SIZES)
def test_choices_weigh_as_in_one_process(targets: dict[int, SharedEngine], size: int) -> None:
    """Forks begin with copies of blocks, which every rank makes of its own heads."""
    prompt, choices = _text(45, 2), [_text(3, 3), _text(1, 4), _text(9, 5), _text(2, 3)]
    found = []
    for number, engine in enumerate((targets[1], targets[size])):
        name = f"choice-{size}-{number}"
        sampling = Sampling(seed=3, num_logprobs=1)
        engine.submit(opening(name, sampling, len(prompt), eos_ids=[1]), "r")
        engine.submit(choosing(name, 1, prompt, choices), "r")
        replies = [reply for _ in range(20) for _, reply in engine.step()]
        engine.submit(Close(session_id=name, epoch=EPOCH), "r")
        engine.check_blocks()
        found += [reply for reply in replies if isinstance(reply, Chosen)]
    alone, shared = found
    assert shared.index == alone.index
    assert shared.logprobs == pytest.approx(alone.logprobs, abs=1e-3)


@pytest.mark.every_engine
@pytest.mark.parametrize("size", SIZES[1:])
def test_each_rank_holds_its_share(targets: dict[int, SharedEngine], size: int) -> None:
    whole = targets[1].sizes[0]
    shares = targets[size].sizes
    assert len(shares) == size
    for share in shares:
        assert share["kv_bytes"] == whole["kv_bytes"] // size
        # Norms are not divided: three of 64 among 100,000 parameters.
        assert share["weight_bytes"] == pytest.approx(whole["weight_bytes"] / size, rel=0.01)


def test_shared_models_are_batch_invariant(targets: dict[int, SharedEngine]) -> None:
    if not can_pack(torch.float32):
        pytest.skip("this CPU or torch has no packed kernel for float32")
    assert [targets[n].sizes[0]["batch_invariant"] for n in SIZES] == [True] * len(SIZES)


@pytest.mark.every_engine
@pytest.mark.parametrize("num_draft_tokens", [0, 4])
@pytest.mark.parametrize(("target_size", "draft_size"), [(1, 1), (2, 1), (1, 2), (4, 2)])
def test_greedy_text_is_that_of_one_process(
    targets: dict[int, SharedEngine],
    drafts: dict[int, SharedEngine],
    target_size: int,
    draft_size: int,
    num_draft_tokens: int,
) -> None:
    expected = _greedy(targets[1], None, 0, "plain")
    name = f"{target_size}-{draft_size}-{num_draft_tokens}"
    draft = drafts[draft_size]
    text = _greedy(targets[target_size], draft, num_draft_tokens, name)
    assert text == expected


def _greedy(
    target: SharedEngine, draft: SharedEngine | None, num_draft_tokens: int, name: str
) -> list[list[int]]:
    """Texts of three sessions that run together."""
    target_link = Link(target)  # type: ignore[arg-type]  # an engine in another process
    draft_link = None if draft is None else Link(draft)  # type: ignore[arg-type]
    clients = [
        Client(
            session_id=f"{name}-{random.random()}",
            prompt=_text(length, length),
            sampling=Sampling(temperature=0.0),
            num_tokens=24,
            target_link=target_link,
            draft_link=draft_link,
            num_draft_tokens=lambda: num_draft_tokens,
        )
        for length in (3, 20, 41)
    ]
    texts = run_clients(clients)
    if num_draft_tokens:
        assert any(client.proposals for client in clients), "nothing was drafted"
    return texts


@pytest.mark.every_engine
def test_stop_ends_every_rank(target_path: str) -> None:
    with shared_engine("target", 2, target_path) as engine:
        assert engine.stop() == [0, 0]


@pytest.mark.every_engine
def test_idle_followers_stay(target_path: str) -> None:
    with shared_engine("target", 2, target_path, idle_timeout_s=4.0) as engine:
        time.sleep(7.0)
        assert engine.forward(("a", 0, [5, 6], 2)).shape == (2, VOCAB_SIZE)
        assert engine.stop() == [0, 0]


@pytest.mark.every_engine
def test_killed_follower_fails_the_leaders_pass(target_path: str) -> None:
    with shared_engine("target", 2, target_path) as engine:
        engine.ranks[1].process.kill()
        engine.ranks[1].process.join(NOTICE_S)
        with pytest.raises(RuntimeError):
            engine.forward(("a", 0, [5, 6], 2))


@pytest.mark.every_engine
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_follower_without_a_leader_ends(target_path: str, by: signal.Signals) -> None:
    with shared_engine("target", 2, target_path, idle_timeout_s=3.0) as engine:
        leader, follower = engine.ranks
        assert leader.process.pid is not None
        os.kill(leader.process.pid, by)
        with pytest.raises(RuntimeError):
            follower.receive()
        follower.process.join(NOTICE_S)
        assert follower.process.exitcode == 1


def _agreements(ranks: TensorParallel | None, pipe: Connection, same: bool) -> None:
    assert ranks is not None
    number = 7 if same else 7 + ranks.rank
    try:
        ranks.must_agree("block_size", number)
        agreed: object = None
    except ValueError as error:
        agreed = str(error)
    pipe.send((ranks.least(number), ranks.all_say(ranks.rank == 0), ranks.all_say(True), agreed))
    ranks.close()


@pytest.mark.parametrize(
    ("same", "complaint"),
    [(True, None), (False, "block_size: ranks came to 7 and 8; give it in the config")],
)
def test_ranks_come_to_the_same(same: bool, complaint: str | None) -> None:
    with start_ranks(2, _agreements, same) as ranks:
        told = [rank.receive() for rank in ranks]
    assert told == [(7, False, True, complaint)] * 2


@pytest.mark.parametrize("size", SIZES[1:])
def test_ranks_replay_the_same_padded_passes(
    targets: dict[int, SharedEngine], target_path: str, size: int
) -> None:
    """Graphs are captured by all ranks together, and a replayed pass has their sums in it.

    As on GPUs each rank has its part of the layers taken apart.
    """
    prompt = _text(40, 5)
    passes: list[list[tuple[str, int, list[int], int]]] = [
        [("a", 0, prompt, 40)],
        [("a", 40, prompt[:3], 3)],
        [("a", 43, prompt[:1], 1)],
    ]
    with shared_engine("target", size, target_path, attention="varlen", graphs="eager") as engine:
        assert engine.sizes[0]["layers"] == "MergedDecoder"
        for rows in passes:
            expected = targets[1].forward(*rows)
            torch.testing.assert_close(engine.forward(*rows), expected, rtol=0, atol=1e-3)
