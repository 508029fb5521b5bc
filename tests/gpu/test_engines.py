"""Engines on a GPU: the text of `generate`, one wait a pass, NCCL."""

from __future__ import annotations

import socket

import pytest
import torch

from models.engine.draft import DraftEngine
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Sampling
from tests.cases.messages import opening, proposing
from tests.fakes.engines import EPOCH, Client, Link, run_clients
from tests.gpu.cuda_runners import reference_gap, reference_greedy, runner, text

PROMPTS = [text(seed, 20 + 70 * seed) for seed in range(3)]
NUM_TOKENS = 40
# Kernels round differently from generate's, so texts may part where two tokens nearly tie. Logits
# have a standard deviation of about 2, and errors one of about 0.1.
NEAR_TIE = 0.8
GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, top_k=40, seed=3)


def spoken(
    chains: bool, sampling: Sampling = GREEDY, num_drafted: int = 4, **changes: object
) -> list[list[int]]:
    target = Link(TargetEngine(runner(**changes), NoMaskSource(), EPOCH))
    drafter = DraftEngine(runner(**changes), NoMaskSource(), EPOCH)
    drafter.chains = chains
    draft = Link(drafter)
    clients = [
        Client(
            f"s{i}",
            prompt,
            sampling,
            NUM_TOKENS,
            target,
            draft if num_drafted else None,
            num_draft_tokens=lambda: num_drafted,
        )
        for i, prompt in enumerate(PROMPTS)
    ]
    return run_clients(clients)


@pytest.mark.parametrize("graphs", ["off", "auto"])
@pytest.mark.parametrize("attention", ["reference", "auto"])
def test_greedy_text_is_that_of_generate(attention: str, graphs: str) -> None:
    texts = spoken(chains=True, attention=attention, graphs=graphs)
    for got, prompt in zip(texts, PROMPTS, strict=True):
        expected = reference_greedy(prompt, NUM_TOKENS)
        assert len(got) == NUM_TOKENS
        pairs = enumerate(zip(got, expected, strict=True))
        parted = next((i for i, (a, b) in pairs if a != b), None)
        if parted is not None:
            gap = reference_gap([*prompt, *got[:parted]], expected[parted], got[parted])
            assert gap < NEAR_TIE, (parted, gap)


@pytest.mark.parametrize("graphs", ["off", "auto"])
def test_chains_draft_what_steps_draft(graphs: str) -> None:
    """Launched pass by pass, and as one graph."""
    assert spoken(chains=True, graphs=graphs) == spoken(chains=False, graphs=graphs)
    drafter = DraftEngine(runner(attention="varlen", graphs=graphs), NoMaskSource(), EPOCH)
    assert (drafter.runner.num_chain_steps(1, 3) == 3) is (graphs == "auto")


@pytest.mark.parametrize("graphs", ["off", "auto"])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_drafts_leave_the_text_unchanged_where_rows_keep_their_bits(
    sampling: Sampling, graphs: str
) -> None:
    """Bit for bit, with other numbers of rows in each pass."""
    texts = [
        spoken(True, sampling, num_drafted, graphs=graphs, batch_invariant=True)
        for num_drafted in (0, 4, 7)
    ]
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_chain_does_not_wait_for_the_device_before_its_end() -> None:
    """torch itself complains of every call that waits while this mode is on."""
    made = runner()
    drafter = DraftEngine(made, NoMaskSource(), EPOCH)
    drafter.chains = True
    drafter.submit(opening("s", Sampling(temperature=0.8, top_p=0.9, seed=1), 20), "r")
    waits = 0
    for seq, k in ((1, 1), (2, 6)):
        drafter.submit(proposing("s", seq, PROMPTS[0], k), "r")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with pytest.warns(UserWarning, match="synchronizing") as caught:
                drafter.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        waits = len(caught)
    assert waits == 1


def test_nccl_carries_a_group_of_one(cuda: torch.device) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.distributed.init_process_group(
        "nccl", init_method=f"tcp://127.0.0.1:{port}", world_size=1, rank=0
    )
    try:
        values = torch.arange(4.0, device=cuda)
        torch.distributed.all_reduce(values)
        assert values.tolist() == [0.0, 1.0, 2.0, 3.0]
    finally:
        torch.distributed.destroy_process_group()
