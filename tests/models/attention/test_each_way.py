"""Properties that each way of attending has, whatever lays out its keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

from models.attention.features import AttentionFeatures
from models.attention.gather_pass import KEY_CHUNK
from models.attention.gather_plan import TILE_ROWS
from tests.cases.attention import (
    DTYPES,
    FEATURES,
    PLAIN,
    Bench,
    GatherBench,
    LaneBench,
    PagedBench,
    Rows,
    Text,
    each_feature,
)


@dataclass(frozen=True)
class Way:
    """A bench, and three sizes of its blocks."""

    make: Callable[..., Bench]
    block_sizes: tuple[int, int, int]


def lanes(name: str, num_threads: int) -> object:
    """Name compiled kernels, which are tried in a sample of all combinations."""
    way = Way(partial(LaneBench, num_threads=num_threads), (16, 48, 64))
    return pytest.param(way, id=name, marks=pytest.mark.matrix)


GATHER = pytest.param(Way(GatherBench, (1, 16, 48)), id="gather")
LANES, LANES_OF_THREADS = lanes("compiled", 1), lanes("compiled, by threads", 3)
PAGES = pytest.param(Way(PagedBench, (8, 16, 64)), id="paged")
PADDED_PAGES = pytest.param(Way(partial(PagedBench, is_padded=True), (8, 16, 64)), id="padded")


@each_feature
@pytest.mark.parametrize("size", range(3))
@pytest.mark.parametrize("way", [GATHER, LANES, LANES_OF_THREADS, PAGES, PADDED_PAGES])
def test_equals_attention_written_out(way: Way, size: int, features: AttentionFeatures) -> None:
    """Whole texts, and their last rows beside whole ones."""
    block_size = way.block_sizes[size]
    bench = way.make(torch.float32, 1024 // block_size, block_size)
    if isinstance(bench, PagedBench):
        features = replace(features, softcap=None)  # which paged kernels do not have
    texts = [Text(length, seed, torch.float32) for seed, length in enumerate((1, 16, 17, 130))]
    whole = bench.whole(texts)
    mixed: list[Rows] = [
        (text, table, max(0, stop - 9) if number % 2 else 0, stop)
        for number, (text, table, _, stop) in enumerate(whole)
    ]
    for rows in (whole, mixed):
        for (text, _, start, stop), out in zip(rows, bench.run(rows, features), strict=True):
            expected = text.reference(features)[start:stop]
            torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, TILE_ROWS, KEY_CHUNK, KEY_CHUNK + 1, 200, 520])
@pytest.mark.parametrize("features", [PLAIN, FEATURES["all"]], ids=["plain", "all"])
@pytest.mark.parametrize("way", [GATHER, LANES])
def test_same_bits_for_rows_chunks_whole_and_strangers(
    way: Way, dtype: torch.dtype, length: int, features: AttentionFeatures
) -> None:
    bench = way.make(dtype)
    text, long, short = Text(length, 0, dtype), Text(700, 1, dtype), Text(3, 2, dtype)
    table, long_table, short_table = (bench.pool.new_table() for _ in range(3))
    (whole,) = bench.run([(text, table, 0, length)], features)
    bench.run([(long, long_table, 0, 699), (short, short_table, 0, 2)], features)
    for count in (1, 2, 3, 6, 9, 37, 128):
        for start in {max(0, length - count), max(0, length - count - 70)}:
            stop = min(length, start + count)
            (alone,) = bench.run([(text, table, start, stop)], features)
            assert torch.equal(alone, whole[start:stop]), (count, start)
            among: list[Rows] = [
                (long, long_table, 699, 700),
                (text, table, start, stop),
                (short, short_table, 2, 3),
            ]
            assert torch.equal(bench.run(among, features)[1], whole[start:stop]), (count, start)


@each_feature
@pytest.mark.parametrize("size", range(3))
@pytest.mark.parametrize("way", [GATHER, LANES])
def test_what_a_block_held_before_does_not_matter(
    way: Way, size: int, features: AttentionFeatures
) -> None:
    block_size = way.block_sizes[size]
    clean, spoilt = (way.make(torch.float32, 1024 // block_size, block_size) for _ in range(2))
    texts = [Text(length, seed, torch.float32) for seed, length in enumerate((20, 64, 131))]
    expected = clean.run(clean.whole(texts), features)
    spoilt.spoil()
    rows = spoilt.whole(texts)
    assert all(map(torch.equal, spoilt.run(rows, features), expected))
    after: list[Rows] = [(text, table, stop - 3, stop - 1) for text, table, _, stop in rows]
    for out, wanted in zip(spoilt.run(after, features), expected, strict=True):
        assert torch.equal(out, wanted[-3:-1])
