"""Draft steps in one graph: the tokens of single steps, and what the host does for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from models import device
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner
from models.gpu import chains as chains_module
from models.gpu import setup
from models.gpu.forward import PagedBackend
from models.gpu.graphs import EagerGraphs
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Proposal, Queued, Sampling
from tests.cases.messages import opening, proposing
from tests.fakes.engines import EPOCH, drain, make_runner, random_prompt, reference_greedy

GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=1.0, seed=5)
SAMPLINGS = {
    "greedy": [GREEDY],
    "sampled": [SAMPLED],
    "truncated": [Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=6)],
    "all of them": [GREEDY, SAMPLED, Sampling(temperature=0.8, top_p=0.5, seed=7)],
}


# Of a runner with chains, which is no other test's.
CONFIG: dict[str, Any] = {"attention": "varlen", "graphs": "eager", "graph_memory_mib": 777}


class CountedGraphs(EagerGraphs):
    """Counts what is captured, and what is replayed afterwards; `newest` was made last."""

    newest: CountedGraphs

    def __init__(self) -> None:
        self.num_captured = self.num_replayed = 0
        CountedGraphs.newest = self

    def capture(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        replay = super().capture(compute)
        self.num_captured += 1

        def counted() -> Tensor:
            self.num_replayed += 1
            return replay()

        return counted


@pytest.fixture(scope="module")
def small_chains() -> Iterator[None]:
    """Sizes that the interpreter captures in seconds, where kernels are taken to be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains_module, "MAX_SESSIONS", 4)
        patch.setattr(chains_module, "MAX_STEPS", 3)
        patch.setattr(setup, "has_kernels", lambda device: True)
        patch.setattr(setup, "EagerGraphs", CountedGraphs)
        yield


@pytest.fixture(scope="module")
def counted(small_chains: None) -> CountedGraphs:
    make_runner(**CONFIG).capture_chains()
    return CountedGraphs.newest


@pytest.fixture
def replaying(counted: CountedGraphs) -> ModelRunner:
    return make_runner(**CONFIG)


def proposals(
    runner: ModelRunner, asked: list[tuple[Sampling, list[int], int]], *, chains: bool = True
) -> list[list[int]]:
    """The drafts of some sessions that ask at once, by an engine of their own."""
    drafter = DraftEngine(runner, NoMaskSource(), EPOCH)
    drafter.chains = chains
    for i, (sampling, prompt, k) in enumerate(asked):
        drafter.submit(opening(f"s{i}", sampling, len(prompt)), "r")
        drafter.submit(proposing(f"s{i}", 1, prompt, k), "r")
    drafted = {}
    for reply in drain(drafter):
        if not isinstance(reply, Queued):
            assert isinstance(reply, Proposal)
            drafted[reply.session_id] = reply.tokens
    return [drafted[f"s{i}"] for i in range(len(asked))]


def test_there_is_a_graph_for_each_number_of_steps(
    replaying: ModelRunner, counted: CountedGraphs
) -> None:
    assert isinstance(replaying.backend, PagedBackend)
    assert replaying.backend.chains is not None
    assert replaying.backend.chains.kept.num_graphs == 3 * 3  # of 1, 2 and 4 rows
    assert replaying.graphs.num_graphs == counted.num_captured
    assert [replaying.num_chain_steps(3, wanted) for wanted in (1, 2, 3, 9)] == [1, 2, 3, 3]
    assert replaying.num_chain_steps(5, 3) == 0


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("num_sessions", [1, 3])
def test_replayed_steps_draw_what_single_steps_draw(
    name: str, num_sessions: int, replaying: ModelRunner
) -> None:
    """Drafts of 9: a pass, two replays of three steps and one of two."""
    samplings = SAMPLINGS[name]
    asked = [
        (samplings[i % len(samplings)], random_prompt(i, 5 + 11 * i), 9)
        for i in range(num_sessions)
    ]
    drafted = proposals(replaying, asked)
    assert drafted == proposals(make_runner(), asked, chains=False)
    assert [len(draft) for draft in drafted] == [9] * num_sessions


def test_the_host_uploads_twice_and_replays_once(
    replaying: ModelRunner, counted: CountedGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all steps after the first: each alone takes an upload of three and five launches."""
    uploads: list[int] = []

    def noted(target: Tensor, array: Any) -> None:
        uploads.append(len(array))
        device.copy_into(target, array)

    monkeypatch.setattr(chains_module, "copy_into", noted)
    before = counted.num_replayed
    prompt = random_prompt(1, 6)
    assert proposals(replaying, [(GREEDY, prompt, 4)]) == [reference_greedy(prompt, 4)]
    assert len(uploads) == 2
    assert counted.num_replayed - before == 2  # the first pass is one


def test_what_graphs_do_not_have_is_drawn_by_passes(replaying: ModelRunner) -> None:
    biased = Sampling(temperature=1.0, seed=5, logit_bias=((7, 3.0),))
    for asked in (
        [(biased, random_prompt(1, 6), 4)],
        [(SAMPLED, random_prompt(i, 6), 4) for i in range(5)],
    ):
        assert proposals(replaying, asked) == proposals(make_runner(), asked, chains=False)


def test_where_memory_is_used_up_there_are_none(
    small_chains: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    used = 0

    def grown(graphs: CountedGraphs) -> int:
        nonlocal used
        used += 1 << 20
        return used

    monkeypatch.setattr(CountedGraphs, "used_bytes", grown)
    runner = make_runner(attention="varlen", graphs="eager", graph_memory_mib=1)
    runner.capture_chains()
    assert runner.num_chain_steps(1, 3) == 0
    assert "eager passes" in caplog.text
    prompt = random_prompt(1, 6)
    assert proposals(runner, [(GREEDY, prompt, 4)]) == [reference_greedy(prompt, 4)]


def test_without_graphs_there_are_no_chains_of_them() -> None:
    runner = make_runner(attention="varlen", graphs="off")
    runner.capture_chains()
    assert runner.num_chain_steps(1, 3) == 0
