"""The token ids of one session with a rolling hash at every length. Standard library only.

Router, engines and constraint service each keep one of the same session. A message names a prefix
by its length *and* its hash. If it gave the length alone, a delayed message could be applied to
other tokens of the same number. The hash is a polynomial over the Mersenne prime 2^61 - 1. So
extending by one token is one multiplication, and rolling back is dropping list entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MODULUS = (1 << 61) - 1
_BASE = 0x1F3D5B79_A8C6E423  # any odd constant below the modulus
EMPTY_HASH = 0


def extend_hash(prefix_hash: int, token_id: int) -> int:
    """Hash of a prefix followed by `token_id`, given the hash of the prefix."""
    return (prefix_hash * _BASE + token_id + 1) % _MODULUS


def num_common(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many first ids are the same in both."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (ours, theirs) in pairs if ours != theirs), min(len(left), len(right)))


class TokenSequence:
    """Token ids of a session; `hash_at(n)` identifies the first n of them."""

    __slots__ = ("_hashes", "ids")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self.ids: list[int] = []
        self._hashes: list[int] = [EMPTY_HASH]
        self.extend(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def hash_at(self, length: int) -> int:
        """Hash of the first `length` ids; `length` must be within 0..len(self)."""
        return self._hashes[length]

    def holds(self, length: int, prefix_hash: int) -> bool:
        """Return whether the first `length` ids are there and are those of `prefix_hash`."""
        return 0 <= length <= len(self.ids) and self._hashes[length] == prefix_hash

    def num_common(self, start: int, tokens: Sequence[int]) -> int:
        """Return how many of `tokens`, from their first on, are the ids from `start` on."""
        return num_common(self.ids[start : start + len(tokens)], tokens)

    def extend(self, ids: Iterable[int]) -> None:
        """Append ids at the end."""
        current = self._hashes[-1]
        for token_id in ids:
            current = extend_hash(current, token_id)
            self.ids.append(token_id)
            self._hashes.append(current)

    def followed_by(self, ids: Iterable[int]) -> TokenSequence:
        """Return a copy of this sequence with ids appended."""
        longer = TokenSequence()
        longer.ids, longer._hashes = self.ids.copy(), self._hashes.copy()
        longer.extend(ids)
        return longer

    def truncate(self, length: int) -> None:
        """Keep the first `length` ids."""
        del self.ids[length:]
        del self._hashes[length + 1 :]
