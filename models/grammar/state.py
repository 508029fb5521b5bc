"""The states of texts under compiled grammars: what may come next, and whether they may end.

Copies are cheap (1-5 us) and share the knowledge of the lexer. So every question is asked of a
copy, and a state itself holds committed tokens only.

End-of-sequence tokens never enter the matcher. llguidance records an eos in one of its two end
states and not in the other. So rolling back over an eos is not reliable. Here an eos is allowed
exactly where the text may end, and nothing is allowed after it. An illegal token leaves a state as
it was.

Knows no sessions, no sockets, no torch. Source: llguidance 1.9 `LLMatcher`.
"""

from __future__ import annotations

from collections.abc import Sequence

import llguidance

from models.grammar.forced import forced_tokens
from models.grammar.schema.source import one_line
from models.protocol.errors import ServingError
from models.protocol.forced import NOTHING_FORCED, Forced
from models.protocol.grammars import Loosened


class MatcherBroken(ServingError):
    """The matcher hit a limit and cannot go on; the same tokens would break it again."""

    code = "grammar_too_complex"


_SPECIAL_BYTE = b"\xff"  # begins a special token in forced bytes; no text has it


class RowLayout:
    """The mask rows of one vocabulary: little-endian 32-bit words, bit t is token t.

    `special` has the bits of all special tokens.
    """

    def __init__(self, vocab_size: int, eos_ids: frozenset[int], special: int = 0) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = eos_ids
        self.row_bytes = (vocab_size + 31) // 32 * 4
        self._eos = sum(1 << i for i in eos_ids)
        self._not_eos = ((1 << vocab_size) - 1) & ~self._eos
        self.special = special & self._not_eos

    def bits(self, row: bytes) -> int:
        """Return the row as a number, with every eos bit and the padding bits cleared."""
        return int.from_bytes(row, "little") & self._not_eos

    def with_eos(self, bits: int, *, is_allowed: bool) -> bytes:
        """Return the row of these bits.

        It has all eos bits if they are allowed.
        """
        return (bits | self._eos if is_allowed else bits).to_bytes(self.row_bytes, "little")


class CompiledGrammar:
    """A grammar ready to start texts. Shared by all sessions that use it.

    `loosened`: the parts of the client's grammar that are not enforced. `dropped`: those of them
    that were taken out of its schemas, so that it is served (`Grammar.dropped`).
    """

    def __init__(
        self, matcher: llguidance.LLMatcher, rows: RowLayout, tokenizer: llguidance.LLTokenizer
    ) -> None:
        self._matcher = matcher
        self._rows = rows
        self.tokenizer = tokenizer
        self.loosened: tuple[Loosened, ...] = ()
        self.dropped: tuple[Loosened, ...] = ()

    def start(self) -> GrammarState:
        """Return the state of an empty text."""
        return GrammarState(self._matcher.deep_copy(), self._rows, self.tokenizer)


class GrammarState:
    """The state of one text under a grammar: what may come next, and whether it may end here."""

    __slots__ = ("_matcher", "_num_consumed", "_rows", "_tokenizer", "has_ended")

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        rows: RowLayout,
        tokenizer: llguidance.LLTokenizer,
        num_consumed: int = 0,
    ) -> None:
        self._matcher = matcher
        self._rows = rows
        self._tokenizer = tokenizer
        self._num_consumed = num_consumed  # without an eos
        self.has_ended = False  # an eos was taken

    def __len__(self) -> int:
        return self._num_consumed + self.has_ended

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a text."""
        return self._rows.eos_ids

    @property
    def is_complete(self) -> bool:
        """True if the text so far is a whole sentence of the grammar."""
        return self.has_ended or (self._matcher.is_accepting() and not self._matcher.is_error())

    def copy(self) -> GrammarState:
        """Return an independent state.

        The lexer is shared, so that one state's work serves the other.
        """
        copied = GrammarState(
            self._matcher.deep_copy(), self._rows, self._tokenizer, self._num_consumed
        )
        copied.has_ended = self.has_ended
        return copied

    def forced(self, last: Sequence[int], max_tokens: int) -> Forced:
        """Return up to `max_tokens` tokens that are forced after the text's last token `last`."""
        if self.has_ended or max_tokens < 1:
            return NOTHING_FORCED
        matcher = self._matcher.deep_copy()
        return forced_tokens(matcher, self._tokenizer, last, max_tokens, self._rows.eos_ids)

    def advance(self, token: int) -> bool:
        """Take one token; False, and no change, when it is not allowed here.

        Raises:
            MatcherBroken: a limit was hit; the state is of no further use.
        """
        if self.has_ended or not 0 <= token < self._rows.vocab_size:
            return False
        if token in self._rows.eos_ids:
            self.has_ended = self.is_complete
            return self.has_ended
        taken: int = self._matcher.try_consume_tokens([token])
        self._check()
        self._num_consumed += taken
        return taken == 1

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens; `length` must be within 0..len(self).

        Raises:
            MatcherBroken: the matcher refused to roll back.
        """
        if not 0 <= length <= len(self):  # a rollback past the start breaks a matcher for good
            raise ValueError(f"cannot roll back to {length} tokens, there are {len(self)}")
        if length == len(self):
            return
        self.has_ended = False
        self._matcher.rollback(self._num_consumed - length)
        self._check()
        self._num_consumed = length

    def row(self) -> bytes:
        """Return the mask of this state: `row_bytes` bytes.

        Raises:
            MatcherBroken: a limit was hit; the state is of no further use.
        """
        if self.has_ended:
            return bytes(self._rows.row_bytes)
        row: bytes = self._matcher.compute_bitmask()
        self._check()
        bits = self._rows.bits(row)
        if not bits or bits & self._rows.special:
            bits = self._without_names(bits)
        return self._rows.with_eos(bits, is_allowed=self.is_complete)

    def _without_names(self, bits: int) -> int:
        """Clear special tokens whose names the grammar has as text.

        If the next text is forced and spells a special token's name, llguidance's mask has that
        token alone. Its matcher then refuses it. The text's first byte stands in for it.
        """
        left = bits & self._rows.special
        while left:
            token = left.bit_length() - 1
            left ^= 1 << token
            if not self._matcher.validate_tokens([token]):
                bits ^= 1 << token
        text: bytes = b"" if bits else self._matcher.deep_copy().compute_ff_bytes()
        if text.startswith(_SPECIAL_BYTE):
            return bits
        first: list[int] = self._tokenizer.tokenize_bytes(text[:1])
        return bits | sum(1 << token for token in first)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise MatcherBroken(one_line(self._matcher.get_error()))


def walk_rows(state: GrammarState, chain: Sequence[int], first_row: int) -> list[bytes]:
    """Return rows of the states after `chain[:first_row]`, `chain[:first_row + 1]`, ..., `chain`.

    `state` is moved. The list ends early before the first state that does not exist: after an
    illegal token or an eos.

    Raises:
        MatcherBroken: a limit was hit.
    """
    rows: list[bytes] = []
    for i in range(len(chain) + 1):
        if i >= first_row:
            if state.has_ended:
                break
            rows.append(state.row())
        if i < len(chain) and not state.advance(chain[i]):
            break
    return rows
