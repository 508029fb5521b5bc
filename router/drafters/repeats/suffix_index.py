"""Finds earlier occurrences of a text's end, and the tokens after them, for suffix decoding.

Chains of occurrences work like in LZ77. They have, for each key length, the latest place after each
key (the last n tokens). They also have, for each place, the one before it. A token is added once,
at a cost that depends on neither the text nor its repeats. A look follows the chain of the longest
key that occurred, for the latest places only. It measures how far each matches backwards. A suffix
tree would keep counts in its nodes; here they are counted among those places on demand.

Finished texts end with a mark, so that no match reaches from one into another. The oldest of them
can be dropped. Memory: some 300 bytes per token. The rule that chooses a draft among match lengths
is that of SuffixDecoding (arXiv 2411.04975). Its estimate of survival is `match_odds.MatchOdds`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LONGEST_KEY = 6  # tokens
_KEY_LENGTHS = (LONGEST_KEY, 3, 1)  # looked for in this order
_MAX_PLACES = 16  # that a look compares; the latest ones
_END = -1  # after a text that is over; no token


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchTerms:
    """Limits of matches and drafts; the names are those of suffix decoding elsewhere.

    A match of n tokens drafts up to `max_spec_factor` * n + `max_spec_offset` tokens. It stops when
    the product of their shares among the places is below `min_token_prob`. Matches are measured up
    to `max_tree_depth` tokens.
    """

    max_tree_depth: int = 24
    max_spec_factor: float = 1.0
    max_spec_offset: float = 0.0
    min_token_prob: float = 0.1

    def num_drafted(self, length: int) -> int:
        """Return how many tokens a match of `length` tokens drafts at most."""
        return int(length * self.max_spec_factor + self.max_spec_offset + 1e-9)


@dataclass(frozen=True, slots=True)
class Match:
    """The most frequent continuation of a match of `length` tokens.

    `shares[j]` is the part of the places still agreed with the draft that say its token j.
    """

    length: int
    tokens: Sequence[int] = ()
    shares: Sequence[float] = ()


class _Chains:
    """The places after each key of one length, each linked to the one before it."""

    __slots__ = ("earlier", "key_length", "latest")

    def __init__(self, key_length: int) -> None:
        self.key_length = key_length
        self.latest: dict[tuple[int, ...], int] = {}
        self.earlier: list[int] = []  # by place, less those dropped; 0: none


class SuffixIndex:
    """Texts one after the other, the last of which may still grow.

    Places count all tokens and marks ever added: place p lies before the token added as number p.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._num_dropped = 0
        self._text_start = 0  # place where the newest text begins
        self._text_ends: deque[int] = deque()  # places where finished texts end, marks included
        self._chains = [_Chains(length) for length in _KEY_LENGTHS]

    def __len__(self) -> int:
        """Tokens and marks that are held."""
        return len(self._tokens)

    @property
    def num_texts(self) -> int:
        """Texts that are over and held."""
        return len(self._text_ends)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Let the newest text go on."""
        tokens, start = self._tokens, self._text_start - self._num_dropped
        for token_id in token_ids:
            tokens.append(token_id)
            num_held = len(tokens)
            for chains in self._chains:
                length = chains.key_length
                if num_held - start < length:
                    chains.earlier.append(0)
                    continue
                key = tuple(tokens[-length:])
                chains.earlier.append(chains.latest.get(key, 0))
                chains.latest[key] = self._num_dropped + num_held

    def end_text(self) -> None:
        """End the newest text; what is added next is another."""
        self._tokens.append(_END)
        for chains in self._chains:
            chains.earlier.append(0)
        self._text_start = self._num_dropped + len(self._tokens)
        self._text_ends.append(self._text_start)

    def drop_oldest(self) -> None:
        """Drop the oldest text that is over."""
        num_tokens = self._text_ends.popleft() - self._num_dropped
        oldest = self._tokens[: num_tokens - 1]
        for chains in self._chains:
            length, latest = chains.key_length, chains.latest
            for end in range(length, len(oldest) + 1):
                key = tuple(oldest[end - length : end])
                if latest.get(key) == self._num_dropped + end:
                    del latest[key]
            del chains.earlier[:num_tokens]
        del self._tokens[:num_tokens]
        self._num_dropped += num_tokens

    def match_bound(self, ids: Sequence[int], *, is_own: bool) -> int:
        """Return at most how many tokens the end of `ids` matches earlier text; cheap.

        It is told by the keys alone. Matches shorter than the middle one count as none.
        """
        longest, middle, _ = self._chains
        if not self._recurs(middle, ids, is_own=is_own):
            return 0
        return len(ids) if self._recurs(longest, ids, is_own=is_own) else longest.key_length - 1

    def _recurs(self, chains: _Chains, ids: Sequence[int], *, is_own: bool) -> bool:
        if len(ids) < chains.key_length:
            return False
        place = chains.latest.get(tuple(ids[-chains.key_length :]), 0)
        if is_own and place == len(ids):  # that is the end itself
            place = chains.earlier[place - 1]
        return place > self._num_dropped

    def matches(
        self, ids: Sequence[int], most: int, terms: MatchTerms, *, is_own: bool
    ) -> list[Match]:
        """Return the continuations of earlier matches of the end of `ids`, the longest match first.

        Args:
            ids: a text.
            most: most tokens of a continuation.
            terms: how far to match and to draft.
            is_own: `ids` begins with the newest text here, which is the only one. A continuation
                that runs into the end of `ids` goes on with the period that it implies.
        """
        source = ids if is_own else self._tokens
        places = [
            (self._match_length(ids, source, place, terms.max_tree_depth), place)
            for place in self._places(ids, is_own=is_own)
        ]
        found: list[Match] = []
        for length in sorted({length for length, _ in places}, reverse=True):
            num_tokens = min(most, terms.num_drafted(length))
            matched = [place for n, place in places if n >= length]
            walk = self._walk(source, matched, num_tokens, terms.min_token_prob, is_own=is_own)
            found.append(Match(length, *walk))
        return found

    def _places(self, ids: Sequence[int], *, is_own: bool) -> list[int]:
        """Return the latest places, without dropped ones, after the longest key that ends `ids`."""
        end = len(ids) if is_own else -1  # nothing follows it
        for chains in self._chains:
            length = chains.key_length
            if length > len(ids):
                continue
            place = chains.latest.get(tuple(ids[-length:]), 0) - self._num_dropped
            found: list[int] = []
            while place > 0 and len(found) < _MAX_PLACES:
                if place != end:
                    found.append(place)
                place = chains.earlier[place - 1] - self._num_dropped
            if found:
                return found
        return []

    @staticmethod
    def _match_length(ids: Sequence[int], source: Sequence[int], place: int, most: int) -> int:
        length, last = 0, len(ids) - 1
        most = min(most, place, len(ids))
        while length < most and source[place - 1 - length] == ids[last - length]:
            length += 1
        return length

    @staticmethod
    def _walk(
        source: Sequence[int], places: list[int], most: int, min_prob: float, *, is_own: bool
    ) -> tuple[list[int], list[float]]:
        """Return the likeliest token after the places, then after those that agree, and so on."""
        tokens: list[int] = []
        shares: list[float] = []
        prob, size = 1.0, len(source)
        while len(tokens) < most:
            at = len(tokens)
            counts: dict[int, int] = {}
            nexts = [source[place + (at % (size - place) if is_own else at)] for place in places]
            for token_id in nexts:
                counts[token_id] = counts.get(token_id, 0) + 1
            counts.pop(_END, None)
            if not counts:
                break
            chosen = max(counts, key=counts.__getitem__)  # the latest of equal ones
            share = counts[chosen] / len(places)
            prob *= share
            if prob < min_prob:
                break
            tokens.append(chosen)
            shares.append(share)
            if share < 1.0:
                places = [
                    p for p, token_id in zip(places, nexts, strict=True) if token_id == chosen
                ]
        return tokens, shares
