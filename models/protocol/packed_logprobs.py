"""Packs the logprobs of one prompt token into bytes, the form they travel and are kept in.

A prompt has an entry for each of its tokens, and only the writer of the answer looks into them.
Objects would cost 2.3 kB a token with 20 likeliest ones. Decoding a long prompt's frame would hold
up a router's event loop. Bytes are 0.3 kB a token, and are not decoded on the way.
"""

from __future__ import annotations

import msgspec

from models.protocol.messages import TokenLogprobs

# Size of one entry, a token or one of its likeliest: array header, id, float64; rank and lengths.
MAX_PACKED_BYTES = 26

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TokenLogprobs)


def pack(entry: TokenLogprobs) -> bytes:
    """Return the entry of a prompt token as bytes."""
    return _encoder.encode(entry)


def unpack(packed: bytes) -> TokenLogprobs:
    """Return the entry that `pack` was given.

    Raises:
        msgspec.ValidationError: the bytes are not a packed entry.
    """
    return _decoder.decode(packed)
