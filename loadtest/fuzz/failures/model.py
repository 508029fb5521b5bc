"""Models and grammars that are simulated: pure functions of the text, over the real KV blocks.

A pass writes token ids where a model would write keys, and reads a row's whole text from there. So
a wrong block, a rollback that was forgotten or a prefix that is another's gives another text. The
logits are a row of a table, chosen by a checksum of the text. Sampling, masks and noise are real.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

import torch
from torch import Tensor

from models.config import EngineConfig
from models.engine.choices.scoring import draw_choice
from models.kv.block_pool import BlockPool
from models.kv.rows import SequenceRows, copied_blocks
from models.protocol.forced import NOTHING_FORCED, Forced
from models.protocol.grammars import Loosened
from models.protocol.messages import Grammar, Sampling
from models.sampling.draws import draw_from_logits
from models.sampling.logits import adjust_logits

VOCAB_SIZE = 32
EOS_ID = 0
BLOCK_SIZE = 4
MAX_MODEL_LEN = 64
_ROW_BYTES = VOCAB_SIZE // 8
_NUM_ROWS = 509
_UNWRITTEN = -1


def logits_table(noise: float) -> Tensor:
    """Logits [rows, V] of the target, or of a draft model that often agrees with it."""
    generator = torch.Generator().manual_seed(0)
    table = 3.0 * torch.randn((_NUM_ROWS, VOCAB_SIZE), generator=generator)
    table += noise * torch.randn((_NUM_ROWS, VOCAB_SIZE), generator=generator)
    table[:, EOS_ID] -= 2.0
    return table


TARGET = logits_table(0.0)
DRAFT = logits_table(0.8)


class SimulatedRunner:
    """The part of `models.engine.runner.ModelRunner` that engines need.

    Args:
        table: of logits.
        num_blocks: of the KV cache.
        max_rows: of a pass.
        spend: is told how many rows each pass has; it takes the time.
    """

    drafts_itself = False
    takes_trees = False

    def __init__(
        self, table: Tensor, num_blocks: int, max_rows: int, spend: Callable[[int], None]
    ) -> None:
        self.device = table.device
        self.vocab_size = self.num_input_ids = VOCAB_SIZE
        self.max_model_len, self.max_num_batched_tokens = MAX_MODEL_LEN, max_rows
        self.config = EngineConfig(
            model_path="simulated", max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=max_rows
        )
        self.pool = BlockPool(num_blocks, BLOCK_SIZE)
        self._table = table
        self._spend = spend
        self._blocks = [array("i", [_UNWRITTEN] * BLOCK_SIZE) for _ in range(num_blocks)]

    def forward(self, sequences: Sequence[SequenceRows]) -> Tensor:
        """See `ModelRunner.forward`."""
        for source, target in zip(*copied_blocks(sequences, BLOCK_SIZE), strict=True):
            self._blocks[target][:] = self._blocks[source]
        for sequence in sequences:
            self._write(sequence)
        rows = [row for sequence in sequences for row in self._rows(sequence)]
        self._spend(sum(len(sequence.token_ids) for sequence in sequences))
        return self._table[torch.tensor(rows, dtype=torch.int64)]

    def are_finite(self, block_ids: list[int]) -> bool:
        """See `ModelRunner.are_finite`."""
        return all(_UNWRITTEN not in self._blocks[block] for block in block_ids)

    def wait(self) -> None:
        """See `ModelRunner.wait`."""

    def _write(self, sequence: SequenceRows) -> None:
        blocks, start = sequence.table.block_ids, sequence.start
        stop = start + len(sequence.token_ids)
        if self.pool.writes_shared(blocks, start, stop):
            raise RuntimeError(f"rows {start} to {stop} would write a shared block")
        for position, token in enumerate(sequence.token_ids, start):
            self._blocks[blocks[position // BLOCK_SIZE]][position % BLOCK_SIZE] = token

    def _rows(self, sequence: SequenceRows) -> list[int]:
        """Return the table's rows that follow from what is in the blocks."""
        if not sequence.num_logits:
            return []
        stop = sequence.start + len(sequence.token_ids)
        text = array("i")
        for block in sequence.table.block_ids[: -(-stop // BLOCK_SIZE)]:
            text += self._blocks[block]
        first = stop - sequence.num_logits + 1
        return [table_row(text[:length]) for length in range(first, stop + 1)]


def table_row(text: array[int]) -> int:
    """Return the row of the logits after a text."""
    return zlib.crc32(text) % _NUM_ROWS


@lru_cache(maxsize=64)
def expected(
    prompt: tuple[int, ...], sampling: Sampling, max_tokens: int, *, is_constrained: bool
) -> tuple[int, ...]:
    """Return the text that a request must have: without engines, blocks, drafts or messages."""
    text, state = array("i", prompt), GrammarState()
    while len(text) < len(prompt) + max_tokens:
        mask = state.row() if is_constrained else None
        logits = adjust_logits(TARGET[table_row(text)][None], [sampling], [mask])
        text.append(int(draw_from_logits(logits, [sampling], [len(text)])[0]))
        if text[-1] == EOS_ID:
            break
        if is_constrained and not state.advance(text[-1]):
            raise AssertionError("a mask let a token pass that the grammar forbids")
    return tuple(text[len(prompt) :])


def expected_choice(
    prompt: tuple[int, ...], sampling: Sampling, choices: tuple[tuple[int, ...], ...]
) -> tuple[int, ...]:
    """Return the choice that a request must get, with its end."""
    logprobs = []
    for choice in choices:
        text, sum_ = array("i", prompt), 0.0
        for token in (*choice, EOS_ID):
            sum_ += float(TARGET[table_row(text)].log_softmax(0)[token])
            text.append(token)
        logprobs.append(sum_)
    return (*choices[draw_choice(logprobs, sampling, len(prompt))], EOS_ID)


# --- a grammar: what may follow depends on the last token and on the length


@cache
def _allowed(last: int, length: int) -> int:
    """Bits of the tokens that may follow, without the eos; every fifth is forced."""
    if length % 5 == 2:
        return 1 << (1 + (7 * last + length) % (VOCAB_SIZE - 1))
    return sum(1 << t for t in range(1, VOCAB_SIZE) if (t + last + length) % 3)


class GrammarState:
    """The part of `models.grammar.state.GrammarState` that a host needs."""

    def __init__(self, ids: Sequence[int] = (), *, has_ended: bool = False) -> None:
        self._ids = list(ids)
        self.has_ended = has_ended

    def __len__(self) -> int:
        return len(self._ids) + self.has_ended

    @property
    def is_complete(self) -> bool:
        """See `GrammarState.is_complete`."""
        return self.has_ended or len(self._ids) % 4 == 3

    def copy(self) -> GrammarState:
        """See `GrammarState.copy`."""
        return GrammarState(self._ids, has_ended=self.has_ended)

    def _bits(self) -> int:
        return _allowed(self._ids[-1] if self._ids else 0, len(self._ids))

    def row(self) -> bytes:
        """See `GrammarState.row`."""
        bits = 0 if self.has_ended else self._bits() | (self.is_complete << EOS_ID)
        return bits.to_bytes(_ROW_BYTES, "little")

    def advance(self, token: int) -> bool:
        """See `GrammarState.advance`."""
        if self.has_ended:
            return False
        if token == EOS_ID:
            self.has_ended = self.is_complete
            return self.has_ended
        if not self._bits() >> token & 1:
            return False
        self._ids.append(token)
        return True

    def truncate(self, length: int) -> None:
        """See `GrammarState.truncate`."""
        if not 0 <= length <= len(self):
            raise ValueError(f"cannot roll back to {length} tokens, there are {len(self)}")
        if length < len(self):
            self.has_ended = False
            del self._ids[length:]

    def forced(self, last: Sequence[int], max_tokens: int) -> Forced:
        """See `GrammarState.forced`."""
        bits = self._bits()
        if self.has_ended or self.is_complete or max_tokens < 1 or bits & (bits - 1):
            return NOTHING_FORCED
        return Forced([bits.bit_length() - 1], 1)


class _Compiled:
    """The part of `models.grammar.state.CompiledGrammar` that a host needs."""

    loosened: tuple[Loosened, ...] = ()

    @staticmethod
    def start() -> GrammarState:
        return GrammarState()


class Compiler:
    """The part of `models.grammar.compiler.GrammarCompiler` that a host needs."""

    row_bytes = _ROW_BYTES

    @staticmethod
    def compile(grammar: Grammar) -> _Compiled:
        """See `GrammarCompiler.compile`."""
        return _Compiled()
