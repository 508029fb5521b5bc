from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch

from models.attention.gather_plan import FITTING_TILES, FIXED_TILES, plan_pass
from models.config import EngineConfig
from models.engine.runner import ModelRunner
from models.engine.self_test import is_batch_invariant
from models.kv.block_pool import BlockPool
from models.layers.linear import can_pack
from tests.cases.models.architectures import CONFIGS, write
from tests.fakes.engines import tiny_config


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("max_num_batched_tokens", [512, 8])
@pytest.mark.parametrize("attention", ["auto", "reference"])
def test_cpu_engines_are_batch_invariant(tiny_target, dtype, max_num_batched_tokens, attention):
    if not can_pack(getattr(torch, dtype)):
        pytest.skip(f"this CPU or torch has no packed kernel for {dtype}")
    sizes = {"max_model_len": 512, "kv_cache_tokens": 2048}
    sizes["max_num_batched_tokens"] = max_num_batched_tokens
    runner = ModelRunner(tiny_config(tiny_target, dtype=dtype, attention=attention, **sizes))
    assert runner.batch_invariant
    runner.pool.check([])


def test_passes_are_padded_and_sums_pass_a_group(tmp_path, monkeypatch):
    """What the test must have tried to say anything of what serving does."""
    tried = set()

    def note(*args):
        paged = plan_pass(*args)
        for gather in paged.gathers:
            num_sessions = gather.batches[0].num_tiles
            if len(gather.batches) > 1:
                tried.add("several tiles")
            if num_sessions > 1 and (gather.block_ids == args[1].null_block).any():
                tried.add("padded")
            if num_sessions > 1 and gather.num_chunks > 16:
                tried.add("many chunks")
        if paged.row_places is not None:
            tried.add("out of order")
        return paged

    monkeypatch.setattr("models.attention.gather.plan_pass", note)
    longer = copy.deepcopy(CONFIGS["llama"])
    longer.max_position_embeddings = 2048
    write(longer, tmp_path)
    ModelRunner(
        EngineConfig(
            model_path=str(tmp_path), max_model_len=2048, num_threads=1, attention="reference"
        )
    )
    assert tried == {"several tiles", "padded", "many chunks", "out of order"}


class _TableForward:
    """Logits are a function of the token alone, unless `disturb` changes them."""

    vocab_size = 32
    max_model_len = 512
    max_num_batched_tokens = 128

    def __init__(self, disturb):
        self.pool = BlockPool(128, 16)
        self.table = torch.randn(32, 32, generator=torch.Generator().manual_seed(0))
        self.disturb = disturb

    def forward(self, sequences):
        logits = torch.cat([self.table[sequence.token_ids] for sequence in sequences])
        wanted = []
        for sequence in sequences:
            own = len(sequence.token_ids)
            wanted += [False] * (own - sequence.num_logits) + [True] * sequence.num_logits
        if self.disturb(sequences):
            logits = logits * (1 + 1e-6)
        return logits[torch.tensor(wanted)]


def _is_scattered(sequence):
    blocks = sequence.table.block_ids
    return blocks[1:] and all(after > before + 1 for before, after in pairwise(blocks))


def _num_rows(sequences):
    return sum(len(sequence.token_ids) for sequence in sequences)


@pytest.mark.parametrize(
    ("disturb", "expected"),
    [
        (lambda sequences: False, True),
        (lambda sequences: _num_rows(sequences) == 1, False),
        (lambda sequences: 1 < _num_rows(sequences) < 10, False),
        (lambda sequences: _num_rows(sequences) == 37, False),
        (lambda sequences: len(sequences) > 1, False),
        (lambda sequences: _num_rows(sequences) == 6 and sequences[0].start == 64, False),
        (lambda sequences: _num_rows(sequences) < 10 and _is_scattered(sequences[0]), False),
        (lambda sequences: max(s.start for s in sequences) > 380 and len(sequences) == 2, False),
    ],
    ids=["none", "decode", "verify", "chunk", "strangers", "one_place", "scattered", "far"],
)
def test_finds_what_depends_on_the_batch(disturb, expected):
    forward = _TableForward(disturb)
    assert is_batch_invariant(forward) is expected
    forward.pool.check([])


class _OneBuffer(_TableForward):
    """Gives views of one buffer, as passes do that are replayed from graphs."""

    def __init__(self, disturb):
        super().__init__(disturb)
        self.buffer = torch.empty(self.max_num_batched_tokens, self.vocab_size)

    def forward(self, sequences):
        logits = super().forward(sequences)
        return self.buffer[: len(logits)].copy_(logits)


def test_logits_may_be_overwritten_by_the_next_pass():
    assert is_batch_invariant(_OneBuffer(lambda sequences: False))
    assert not is_batch_invariant(_OneBuffer(lambda sequences: _num_rows(sequences) == 37))


def test_fits_into_a_small_pool_and_context():
    forward = _TableForward(lambda sequences: False)
    forward.pool = BlockPool(1, 16)
    forward.max_model_len = 5
    assert is_batch_invariant(forward)
    forward.pool.check([])


@pytest.mark.parametrize(
    ("outcomes", "tiles", "is_invariant"),
    [
        ([True], FITTING_TILES, True),
        ([False, True], FIXED_TILES, True),
        ([False, False], FITTING_TILES, False),
    ],
    ids=["fitting tiles will do", "fixed ones are needed", "neither helps"],
)
def test_tiles_are_fixed_only_where_that_helps(
    tiny_target, monkeypatch, outcomes, tiles, is_invariant
):
    left = iter(outcomes)
    monkeypatch.setattr("models.engine.runner.is_batch_invariant", lambda runner: next(left))
    sizes = {"max_model_len": 64, "kv_cache_tokens": 64}
    runner = ModelRunner(tiny_config(tiny_target, attention="reference", **sizes))
    assert runner.batch_invariant is is_invariant
    assert runner.backend._tiling == tiles
    assert list(left) == []
