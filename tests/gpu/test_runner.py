"""Paged attention, graphs and the gathering path give one answer on a GPU."""

from __future__ import annotations

import pytest
import torch

from models.engine.runner import ModelRunner, SequenceRows
from models.kv.block_pool import BlockTable
from tests.gpu.cuda_runners import MAX_MODEL_LEN, runner, text

# Standard deviation of the difference to that of the logits. In bfloat16 on a CPU the two paths
# differ by 0.03 to 0.06 with this checkpoint; a wrong key or mask brings it near 1.
MAX_DEVIATION = 0.15


def assert_close(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(got, expected, strict=True):
        assert float((one - other).std() / other.std()) < MAX_DEVIATION


class Talk:
    """The same ragged passes on any runner: prompts, then rounds of several sessions."""

    def __init__(self, made: ModelRunner) -> None:
        self.runner = made
        self.tables: list[BlockTable] = [made.pool.new_table() for _ in range(4)]
        self.lengths = [0] * 4

    def run(self) -> list[torch.Tensor]:
        results = [self._pass([(i, 40 + 90 * i, 1)]) for i in range(4)]
        for rows, members in ((1, [0, 1, 2, 3]), (5, [0, 2, 3]), (1, [1]), (6, [1, 0]), (3, [3])):
            results.append(self._pass([(i, rows, rows) for i in members]))
        return results

    def _pass(self, needs: list[tuple[int, int, int]]) -> torch.Tensor:
        sequences = []
        for i, count, num_logits in needs:
            start = self.lengths[i]
            self.lengths[i] += count
            self.tables[i].resize(self.lengths[i])
            ids = text(i, MAX_MODEL_LEN)[start : start + count]
            sequences.append(SequenceRows(self.tables[i], start, ids, num_logits))
        return self.runner.forward(sequences).clone()


@pytest.fixture(scope="module")
def gathered() -> list[torch.Tensor]:
    return Talk(runner(attention="reference")).run()


@pytest.mark.parametrize("graphs", ["off", "eager", "auto"])
def test_the_kernel_gives_the_logits_of_the_gathering_path(
    graphs: str, gathered: list[torch.Tensor]
) -> None:
    assert_close(Talk(runner(attention="varlen", graphs=graphs)).run(), gathered)


def test_graphs_give_what_the_same_padded_passes_give_eagerly() -> None:
    """Padding may choose other tiles, recording may not: bit for bit."""
    eager = Talk(runner(attention="varlen", graphs="eager")).run()
    recorded = Talk(runner(attention="varlen", graphs="auto")).run()
    for got, expected in zip(recorded, eager, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize(("mib", "has_graphs"), [(1, False), (64, True)])
def test_graphs_stay_within_their_memory(mib: int, has_graphs: bool) -> None:
    bounded = runner(attention="varlen", graphs="auto", graph_memory_mib=mib)
    assert (bounded.graphs.num_graphs > 0) is has_graphs
    # On an H100 products take a workspace of 32 MiB for the stream of the graphs.
    assert bounded.graphs.num_bytes <= max(40, mib) << 20
    Talk(bounded).run()


def test_a_share_of_the_gpu_is_kept_to_beside_another_process() -> None:
    """What this process holds already is its own, what the model leaves of its share is KV."""
    made = runner(kv_cache_tokens=None, gpu_memory_utilization=0.2, block_size="auto")
    total = torch.cuda.get_device_properties(0).total_memory
    kv_bytes = made.pool.num_blocks * made.pool.block_size * made.kv_bytes_per_token
    assert 0.05 * total < kv_bytes < 0.2 * total
    assert torch.cuda.memory_reserved() < 0.2 * total
    Talk(made).run()
