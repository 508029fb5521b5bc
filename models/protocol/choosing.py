"""The question which text of a list the target gives, and its answer. Needs msgspec only.

A `Choose` has the header of all engine messages (`messages.py`) and follows its rules. A repeat
gets the stored answer, and a higher `seq` takes its place.
"""

from __future__ import annotations

from models.protocol.parts import Question, Reply, Timing, TokenLogprobs


class Choose(Question, frozen=True, kw_only=True, tag="choose"):
    """Weigh all `choices` after the committed tokens, and draw one.

    Choice i has the log-probability of its tokens, each after those before it. The log-probability
    of an end (`Open.eos_ids`) behind the last is included. These are of the session's terms at
    temperature 1 without truncation. The sample comes from a distribution over the choices, as it
    does over tokens elsewhere. temperature, min-p, top-k and top-p act on it.
    """

    choices: list[list[int]]  # none is empty


class Chosen(Reply, frozen=True, kw_only=True, tag="chosen"):
    """Choice `index` was drawn; its tokens commit, and `end_token` behind them.

    `token_logprobs` and `prompt_logprobs` are those of a `Verdict` for these tokens.
    """

    index: int
    end_token: int  # the likeliest of those that end a text
    logprobs: list[float]  # one for each choice
    timing: Timing
    token_logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[bytes] = []
    num_cached_tokens: int = 0  # found in the prefix cache since the session's last answer
