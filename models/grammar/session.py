"""Keeps the committed text of one session under a grammar, with its matcher.

A request names its base by length and hash; its tokens may be committed already, in part or all.
Pure bookkeeping: knows no messages and no other session.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from models.grammar.state import GrammarState, walk_rows
from models.protocol.grammars import Loosened
from models.protocol.messages import Grammar
from models.protocol.token_sequence import EMPTY_HASH, TokenSequence


@dataclass(slots=True, eq=False)
class GrammarText:
    """One session's matcher at its committed tokens."""

    epoch: int
    grammar: Grammar
    state: GrammarState
    used_at: float
    loosened: tuple[Loosened, ...] = ()  # parts of the grammar that are not enforced
    tokens: TokenSequence = field(default_factory=TokenSequence)
    completes: list[bool] = field(init=False)  # by committed length
    last_seq: int = -1
    max_forced: int = 0  # forced tokens that its router wants

    def __post_init__(self) -> None:
        self.completes = [self.state.is_complete]

    def push(self, token: int) -> bool:
        """Commit one token if the grammar allows it."""
        if not self.state.advance(token):
            return False
        self.tokens.extend((token,))
        self.completes.append(self.state.is_complete)
        return True

    def truncate(self, length: int) -> None:
        """Take back all tokens after the first `length`."""
        self.state.truncate(length)
        self.tokens.truncate(length)
        del self.completes[length + 1 :]


def rows_after(session: GrammarText, base_len: int, chain: list[int], num_rows: int) -> list[bytes]:
    """Return rows of the last `num_rows` states of `chain`, walked on a copy of the matcher."""
    first_row = len(chain) - num_rows + 1
    # Tokens of the chain that are committed need no walking, up to the first state asked for.
    num_common = session.tokens.num_common(base_len, chain[:first_row])
    state = session.state.copy()
    state.truncate(base_len + num_common)
    return walk_rows(state, chain[num_common:], first_row - num_common)


def resume_at(tokens: TokenSequence, base_len: int) -> tuple[int, int]:
    """Return length and hash from which an asker with an unknown base can go on.

    An asker that is ahead knows all committed tokens. One whose tokens are not the committed
    ones can be sure of the empty prefix only.
    """
    if base_len > len(tokens):
        return len(tokens), tokens.hash_at(len(tokens))
    return 0, EMPTY_HASH
