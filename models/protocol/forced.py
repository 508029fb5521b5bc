"""Tokens that a grammar forces next, as the constraint service finds them and a router drafts them.

Of forced text the bytes are certain and the tokens are not: models cut a text as it is cut in
training, canonically, so that is how forced text is cut here. A wrong guess costs a row of a pass.
"""

from __future__ import annotations

import msgspec


class Forced(msgspec.Struct, frozen=True):
    """The canonical tokens of the text that is forced next.

    The first `num_settled` are the same whatever follows the forced text. Those after them, at its
    edge, are right unless what follows merges with them: `": "` is one token in many vocabularies,
    but so may be the `": "x` that an open string can make of it.
    """

    tokens: list[int] = []
    num_settled: int = 0


NOTHING_FORCED = Forced()
