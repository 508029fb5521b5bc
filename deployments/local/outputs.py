"""Results of the Python API, in the shapes and names of vLLM's offline API.

An output also has its `seed`. An answer to a prompt has the speculation figures of all its choices
together (`metrics`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from deployments.api.choices import finished_together
from deployments.api.schemas.logprobs import ChoiceProbability, probabilities_of, ranked
from models.protocol.messages import TokenLogprobs
from models.protocol.packed_logprobs import unpack
from models.text.tokenizer import Tokenizer
from router.stats import SpeculationStats
from router.types import Delta, Finished, FinishReason, GenerationRequest, LookaheadStats


@dataclass(frozen=True, slots=True)
class Logprob:
    """The probability of one token: log-softmax of the logits before any processor."""

    logprob: float
    rank: int  # 1 for the likeliest
    decoded_token: str  # a part of a character shows as U+FFFD


Logprobs = dict[int, Logprob]  # by token id: the token that came, and the likeliest in its place


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One answer to a prompt.

    `logprobs` has an entry for each token with text in the answer. It has none for the token that
    ended it, which is the last of `token_ids`. `choice_probabilities` are of a list that was drawn
    from, where they were asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[Logprobs] | None
    finish_reason: FinishReason
    seed: int
    lookahead: LookaheadStats | None = None  # only of a text that a reward steered
    choice_probabilities: list[ChoiceProbability] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """All answers to one prompt.

    `prompt_logprobs` begin with None: nothing predicts the first token.
    """

    request_id: str
    prompt: str | None  # the text; None where token ids were given
    prompt_token_ids: list[int]
    prompt_logprobs: list[Logprobs | None] | None
    outputs: list[CompletionOutput]
    num_cached_tokens: int  # prompt tokens found in the prefix cache
    metrics: SpeculationStats
    finished: bool = True


@dataclass(slots=True)
class Answer:
    """One choice while it is generated."""

    request: GenerationRequest
    choice_texts: Sequence[str] = ()  # texts whose probabilities were asked for
    of_choices: list[ChoiceProbability] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    entries: list[TokenLogprobs] = field(default_factory=list)
    of_prompt: Sequence[bytes] | None = None
    end: Finished | None = None

    def add(self, item: Delta | Finished) -> None:
        """Take in what the generator yields next."""
        if isinstance(item, Finished):
            self.end = item
            return
        self.texts.append(item.text)
        self.of_choices += probabilities_of(self.choice_texts, item)
        self.token_ids += item.token_ids
        self.entries += [shown.logprobs for shown in item.shown]
        if item.prompt_logprobs is not None:
            self.of_prompt = item.prompt_logprobs


def request_output(
    prompt: str | None, answers: Sequence[Answer], tokenizer: Tokenizer
) -> RequestOutput:
    """Put the answers to one prompt together; all have ended."""
    first = answers[0]
    ends = [answer.end for answer in answers if answer.end is not None]
    assert len(ends) == len(answers), f"{len(ends)} of {len(answers)} answers have ended"
    pairs = zip(answers, ends, strict=True)
    together = finished_together(ends)
    of_prompt: list[Logprobs | None] | None = None
    if first.of_prompt is not None:
        of_prompt = [None, *(_named(unpack(entry), tokenizer) for entry in first.of_prompt)]
    return RequestOutput(
        request_id=first.request.request_id,
        prompt=prompt,
        prompt_token_ids=list(first.request.prompt_ids),
        prompt_logprobs=of_prompt,
        outputs=[_output(i, answer, end, tokenizer) for i, (answer, end) in enumerate(pairs)],
        num_cached_tokens=together.num_cached_tokens,
        metrics=together.speculation,
    )


def _output(index: int, answer: Answer, end: Finished, tokenizer: Tokenizer) -> CompletionOutput:
    sampling = answer.request.sampling
    is_asked = sampling.num_logprobs >= 0
    return CompletionOutput(
        index=index,
        text="".join(answer.texts),
        token_ids=answer.token_ids,
        cumulative_logprob=sum(e.logprob for e in answer.entries) if is_asked else None,
        logprobs=[_named(entry, tokenizer) for entry in answer.entries] if is_asked else None,
        finish_reason=end.finish_reason,
        seed=sampling.seed,
        lookahead=end.lookahead,
        choice_probabilities=answer.of_choices or None,
    )


def _named(entry: TokenLogprobs, tokenizer: Tokenizer) -> Logprobs:
    return {
        token: Logprob(logprob, rank, tokenizer.token_bytes(token).decode(errors="replace"))
        for token, logprob, rank in ranked(entry)
    }
