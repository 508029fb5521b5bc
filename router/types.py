"""Inputs and outputs of the router, and the interface between the two.

`SpeculativeGenerator.generate` is what HTTP calls: one request in, text deltas out, then exactly
one `Finished`. It knows no HTTP and no transport; pools and detokeniser are handed in.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from models.protocol.grammars import GrammarChecked, Loosened
from models.protocol.messages import DraftTest, Grammar, Sampling, TokenLogprobs
from router.predicted_text import PredictedText
from router.stats import SpeculationStats, TimeSplit

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationSettings:
    """A request's options for drafts; the text keeps its distribution."""

    enabled: bool = True
    num_speculative_tokens: int | None = None  # fixed k; None: chosen live
    drafter: str | None = None  # by its name; None: the deployment's choice
    draft_sample_method: str | None = None  # None: the deployment's
    disable_by_batch_size: int = 0  # no drafts while more sessions run on its target; 0: no rule
    details: bool = False  # tell every round; the sampling must ask for logprobs as well
    compare: bool = False  # tell what each draft model would have drafted


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadSettings:
    """A request's options for steering its text by a reward; see `router/lookahead`.

    The options change the text: they trade likelihood for reward.

    Args:
        method: `cdlh` rolls candidates out with the target, `cdsl` verifies drafts first.
        reward: JSON text of the reward and its parameters.
        text_of: the text that the client sees of generated tokens.
        length: tokens of a draft, and of a roll-out behind its candidate.
        candidates: next tokens that are rolled out, the likeliest.
        acceptance: which drafts of `cdsl` are kept. `paper`: those of which `accept_threshold`
            stands and that earn `reward_threshold`, whole; no other. `gain`, a rule of ours: also
            what earns more than the text without it, but nothing that loses the constraint.
        accept_threshold: share of a draft that must be accepted for it to be judged.
        reward_threshold: that a judged draft must earn.
        reward_weight: what a whole reward is worth, in nats of a candidate's log-probability.
        generation: what the target does where a draft is not kept: `lookahead` rolls candidates
            out, `plain` takes its own next token.
        rollout: `greedy`, or `sampled` by the request's sampling.
        commit: of the candidate that is taken, in `cdlh` and wherever `cdsl` looks ahead: its
            `token`, as the papers; `gain`, as much of its roll-out as earns what all of it earns,
            where that is more than the text has; or all of the `rollout` (cheaper, blinder). With
            acceptance and commit `gain` a draft that is kept below `reward_threshold` is cut
            likewise.
        budget: target passes that may be spent before the text goes on plainly; 0: as many as it
            takes.
    """

    method: Literal["cdsl", "cdlh"]
    reward: str
    text_of: Callable[[Sequence[int]], str]
    length: int = 6
    candidates: int = 8
    acceptance: Literal["paper", "gain"] = "gain"
    accept_threshold: float = 0.0
    reward_threshold: float = 1.0
    reward_weight: float = 8.0
    generation: Literal["lookahead", "plain"] = "lookahead"
    rollout: Literal["greedy", "sampled"] = "greedy"
    commit: Literal["token", "gain", "rollout"] = "gain"
    budget: int = 0
    seed: int | None = None  # seed of sampled roll-outs; None: the request's

    @property
    def num_rollouts(self) -> int:
        """The number of concurrent roll-outs; 0: none ever run."""
        is_needed = self.method == "cdlh" or self.generation == "lookahead"
        return self.candidates if is_needed else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadStats:
    """The costs and results of look-ahead for one request.

    Args:
        method: as it was asked for.
        num_target_passes: verifications and single steps of the target; a pass that steps several
            roll-outs at once counts once for each.
        num_verifications: those of the text itself: of its drafts, of what may follow it, and its
            plain steps; the others are of roll-outs.
        num_draft_steps: tokens that the draft model drafted.
        num_rollouts: candidates that were rolled out.
        num_reward_calls: questions to the reward, each of all texts of one step.
        states: how often each state was visited (`router/lookahead/loop.py`).
        score: of the whole text by its reward (soft satisfaction).
        is_met: whether the whole text meets the constraint (hard satisfaction).
        is_budget_spent: whether the text's end was written plainly for that.
        advice: what to change, by the sign of failure that calls for it (`lookahead/advice.py`).
    """

    method: str
    num_target_passes: int
    num_verifications: int
    num_draft_steps: int
    num_rollouts: int
    num_reward_calls: int
    states: Mapping[str, int]
    score: float
    is_met: bool
    is_budget_spent: bool
    advice: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One completion, already tokenised and validated.

    `eos_ids` end the text unless `ignore_eos`, `stop_token_ids` in any case; `stop` strings end it
    too. None of these is part of the text unless `includes_stop`. Requests share cached prefixes
    only with those of the same `cache_salt`. If `choices` are given, the text is one of them. It is
    drawn by the target's probability of each whole choice (`models.protocol.choosing`). There is no
    grammar then. If `max_tokens` is 0, there is no text, only what the target says of the prompt.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    eos_ids: tuple[int, ...]
    max_tokens: int
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    choices: tuple[tuple[int, ...], ...] = ()  # tokens of each
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    includes_stop: bool = False
    is_mostly_free: bool = False  # the grammar lets free text come first: planners count it as such
    cache_salt: str = ""
    goes_first: bool = False  # its client runs less than its share: engines read its prompt first
    adapter: str = ""  # of the target, by its name; "": the model itself
    prefix_key: str = ""  # the same for requests whose prompts begin alike; "": too short to matter
    prediction: PredictedText | None = None  # text that the answer mostly repeats, by the client
    known_ids: tuple[int, ...] = ()  # its first tokens that the client has, of a stream that broke
    speculation: SpeculationSettings = field(default_factory=SpeculationSettings)
    lookahead: LookaheadSettings | None = None  # there are no choices then

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end the text, each once."""
        own_ids = () if self.ignore_eos else self.eos_ids
        return tuple(dict.fromkeys((*own_ids, *self.stop_token_ids)))


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token whose text is shown; `offset` counts the characters of the text before it."""

    offset: int
    logprobs: TokenLogprobs


@dataclass(frozen=True, slots=True)
class Delta:
    """New text and the tokens committed with it; the text may come later than the tokens.

    `shown` is there if the request asks for logprobs. It has the tokens of the text shown so far
    that were not in an earlier delta. A character of several tokens is shown with the last of them.
    The first delta has `prompt_logprobs`, one for each prompt token but the first, packed
    (`models.protocol.packed_logprobs`).

    `finish_reason` is set in the last delta of a text. `num_draft_tokens` are those that its
    `num_verdicts` were on; 0: none were drafted. `num_verdicts` is 0 for tokens
    that are taken as the client has them (`GenerationRequest.known_ids`). `details` are there where
    the request asks for them. `choice_logprobs` are those of its `choices`, in their order.
    """

    text: str
    token_ids: tuple[int, ...]
    shown: tuple[ShownToken, ...] = ()
    prompt_logprobs: tuple[bytes, ...] | None = None
    finish_reason: FinishReason | None = None
    num_draft_tokens: int = 0
    num_verdicts: int = 1
    details: DeltaDetails | None = None
    choice_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why the k of a session's newest round is what it is.

    Args:
        num_draft_tokens: k.
        reason: in a word or two, as in `RoundPlan`.
        mode: of the sessions on the replica; "": the round is in no common plan.
        survival: S_1, S_2, ...: how likely so many draft tokens are to be accepted.
        min_survival: what a token's survival must be to be worth its row: what others leave.
        depth: draft steps of the common plan, at most.
        num_sessions: that the plan was made for.
        drafting_per_ms, plain_per_ms: tokens per ms of all of them that were expected, with drafts
            and without; 0.0: not known.
        pass_ms, step_ms: of a target pass over k + 1 rows and of a draft step; 0.0: not known.
    """

    num_draft_tokens: int
    reason: str
    mode: str = ""
    survival: tuple[float, ...] = ()
    min_survival: float = 0.0
    depth: int = 0
    num_sessions: int = 0
    drafting_per_ms: float = 0.0
    plain_per_ms: float = 0.0
    pass_ms: float = 0.0
    step_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class DraftedSegment:
    """A drafter's part of a round's draft, and how many of its tokens were accepted."""

    drafter: str
    num_tokens: int
    num_accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDetails:
    """One verdict of the target and what led to it: a draft, or a plain step.

    Args:
        number: of the round in its session, from 0.
        why: why its k; None: a plain step that the target made by the plan of the round before.
        segments: of the draft, in order.
        rejected_ids: what a model drafted in vain. Text that was copied is left out: it may be of
            another client's answer.
        last: what the round's last token is. `recovered`: after a rejection; `bonus`: after a whole
            draft; `plain`: there was no draft.
        num_tokens: that the round committed.
        tests: of draft tokens that may be named, in order, as the target tested them.
        time: what it took. `emit_ms` is of the round before.
    """

    number: int
    why: Explanation | None
    segments: tuple[DraftedSegment, ...]
    rejected_ids: tuple[int, ...]
    last: Literal["recovered", "bonus", "plain"]
    num_tokens: int
    time: TimeSplit
    tests: tuple[DraftTest, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenOrigin:
    """The writer of a token, `target` or a drafter; its grammar allowed `num_allowed` tokens."""

    source: str
    round_number: int
    num_allowed: int | None = None


@dataclass(frozen=True, slots=True)
class DeltaDetails:
    """The round that a delta brings, and the origin of each token of `Delta.shown`."""

    round: RoundDetails
    origins: tuple[TokenOrigin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end of a request, exactly once, always last."""

    finish_reason: FinishReason
    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int = 0  # tokens of the prompt found in the first target's prefix cache
    speculation: SpeculationStats
    lookahead: LookaheadStats | None = None  # only of a request that asks for it
    loosened: tuple[Loosened, ...] = ()  # parts of its grammar that are not enforced
    has_grammar: bool = False  # for all of its text
    replicas: Mapping[str, str] = field(default_factory=dict)  # that served it last, by part


class Detokenizer(Protocol):
    """Incremental decoding of one session's tokens."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that these further tokens complete; incomplete UTF-8 is held back."""
        ...

    def flush(self) -> str:
        """Return the text that is still held back at the end."""
        ...


class Generator(Protocol):
    """The part of the router that HTTP needs."""

    def generate(
        self, request: GenerationRequest, detokenizer: Detokenizer
    ) -> AsyncGenerator[Delta | Finished, None]:
        """Run one request. `aclose()` on the generator cancels it and frees it everywhere.

        Raises:
            ServingError: what the client gets as an error; no `Finished` is yielded then.
        """
        ...


class GrammarChecker(Protocol):
    """Compares texts with grammars."""

    async def __call__(self, grammar: Grammar, text: str) -> GrammarChecked:
        """Check how far a text obeys a grammar.

        Raises:
            UnsupportedGrammar: the grammar is refused, or the text is too long.
            Unavailable: nobody answers.
        """
