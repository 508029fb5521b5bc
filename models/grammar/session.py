"""Keeps the committed text of one session under a grammar, with its matcher.

A request names its base by length and hash; its tokens may be committed already, in part or all.
Pure bookkeeping: knows no messages and no other session.
"""

from __future__ import annotations

from models.grammar.state import GrammarState, walk_rows
from models.protocol.grammars import Loosened
from models.protocol.messages import Grammar
from models.protocol.token_sequence import EMPTY_HASH, TokenSequence


class GrammarText:
    """One session's matcher at its committed tokens."""

    __slots__ = (
        "completes",
        "epoch",
        "grammar",
        "last_seq",
        "loosened",
        "max_forced",
        "state",
        "tokens",
        "used_at",
    )

    def __init__(self, epoch: int, grammar: Grammar, state: GrammarState) -> None:
        self.epoch = epoch
        self.grammar = grammar
        self.state = state
        self.tokens = TokenSequence()
        self.completes = [state.is_complete]  # by committed length
        self.last_seq = -1
        self.used_at = 0.0
        self.max_forced = 0  # forced tokens that its router wants
        self.loosened: tuple[Loosened, ...] = ()  # parts of the grammar that are not enforced

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
