"""Finds the tokens that a grammar forces: key names, punctuation, the rest of an enum's value.

llguidance walks on while only one byte is possible. It cuts those bytes as the tokenizer cuts them
after the text's last token. A token at the end could merge with the text that the grammar allows
next. llguidance finds such tokens by the vocabulary's spelling and does not keep them. They are cut
here and follow as the edge. For example, a grammar for `{"city": <string>}` forces `": "` after
`{"city`. If the vocabulary has `": "` and also `": "x`, that is one token at the edge. Strings may
begin with an x, though few do. A tokenizer that splits words from quotes would not merge the two
even then.

Every question is asked of a copy of the matcher. Source: llguidance 1.9 `compute_ff_tokens`,
`compute_ff_bytes`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import llguidance

from models.protocol.forced import NOTHING_FORCED, Forced


def forced_tokens(
    matcher: llguidance.LLMatcher,
    tokenizer: llguidance.LLTokenizer,
    last: Sequence[int],
    max_tokens: int,
    eos_ids: Collection[int],
) -> Forced:
    """Return up to `max_tokens` tokens that are forced next. The work is bounded like a mask's.

    Args:
        matcher: at the end of the text; it is moved, so a copy.
        tokenizer: of the matcher.
        last: the last token of the text, if it has any: it may merge with what is forced.
        max_tokens: of the answer.
        eos_ids: tokens that no forced text holds, be it written like one.
    """
    text: bytes = matcher.compute_ff_bytes()
    settled: list[int] = matcher.compute_ff_tokens() if text else []
    if not text:
        return NOTHING_FORCED
    tokens = list(settled)
    if len(settled) < max_tokens:
        tokens += _edge(tokenizer, last, settled, text)
    end = next((at for at, token in enumerate(tokens) if token in eos_ids), len(tokens))
    tokens = tokens[: min(end, max_tokens)]
    # A special token is no text: the tokenizer finds its name in text where the grammar does not.
    tokens = tokens[: matcher.validate_tokens(tokens)]
    return Forced(tokens, min(len(settled), len(tokens)))


def _edge(
    tokenizer: llguidance.LLTokenizer, last: Sequence[int], settled: Sequence[int], text: bytes
) -> list[int]:
    """Return the tokens of forced text after those that are settled."""
    before = [*last, *settled]
    whole: list[int] = tokenizer.tokenize_bytes(tokenizer.decode_bytes(list(last)) + text)
    if whole[: len(before)] == before:
        return whole[len(before) :]
    # The text's own tokens are not canonical here: what follows is cut without them.
    rest = text[len(tokenizer.decode_bytes(list(settled))) :]
    edge: list[int] = tokenizer.tokenize_bytes(rest)
    return edge
