"""Tokens that a grammar forces next, as the constraint service finds them and a router drafts them.

The bytes of forced text are certain and its tokens are not. Models cut a text as in training,
canonically, so forced text is cut in the same way here. A wrong guess costs a row of a pass.
"""

from __future__ import annotations

import msgspec


class Forced(msgspec.Struct, frozen=True):
    """The canonical tokens of the text that is forced next.

    The first `num_settled` are the same whatever follows the forced text. Those after them, at its
    edge, are right unless the following text merges with them. `": "` is one token in many
    vocabularies, but so may be the `": "x` of an open string.
    """

    tokens: list[int] = []
    num_settled: int = 0


NOTHING_FORCED = Forced()
