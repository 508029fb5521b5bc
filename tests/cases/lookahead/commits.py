"""How much of a winning roll-out is committed; the papers commit its candidate alone."""

from __future__ import annotations

from collections.abc import Callable


def committed(commit: str, future: list[int], worth: Callable[[list[int]], float]) -> list[int]:
    """By the option `commit`: the `token`, all of the `rollout`, or its `gain`.

    The gain is the shortest beginning that is worth what all of it is; a token where all of it is
    worth no more than nothing of it.
    """
    if commit == "rollout":
        return future
    if commit == "token" or worth(future) <= worth([]):
        return future[:1]
    beginnings = (future[:length] for length in range(1, len(future) + 1))
    return next(one for one in beginnings if worth(one) >= worth(future))
