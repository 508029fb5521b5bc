"""Events of a few sizes: OpenAI's `obfuscation`, random text that hides an event's length.

An observer of the encrypted stream sees the length of its events. Answers can be guessed from the
lengths of tokens (arXiv 2411.01076). Here every event is filled up to a power of two. It is the
same for all texts of up to 160 bytes. The number and the times of events remain visible. Longer
texts, lists of logprobs, or ids of tokens, have the next powers.

It is off by default (OpenAI's is on), because it doubles the bytes. Only client and server see the
stream in most places where this is served.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

_BEFORE, _AFTER = b',"obfuscation":"', b'"}'
_ENVELOPE_BYTES = 320  # size of an event, counts of tokens included, without the model's name
_TEXT_BYTES = 160  # that at least fit in the smallest size
_LARGE_BYTES = 65_536  # longer events, which hold lists of logprobs, have multiples of it


def sealing(model: str) -> Callable[[bytes], bytes]:
    """Return a function that pads the events of one stream, JSON objects, to its sizes."""
    smallest = _size(_ENVELOPE_BYTES + _TEXT_BYTES + len(model.encode()))

    def sealed(body: bytes) -> bytes:
        bare = body[:-1] + _BEFORE
        num_bytes = len(bare) + len(_AFTER)
        room = max(smallest, _size(num_bytes)) - num_bytes
        # Random, so that no compression on the way takes it out again.
        return bare + secrets.token_urlsafe(room)[:room].encode() + _AFTER

    return sealed


def _size(at_least: int) -> int:
    if at_least > _LARGE_BYTES:
        return -(-at_least // _LARGE_BYTES) * _LARGE_BYTES
    return 1 << (at_least - 1).bit_length()
