"""Requests of a run, and its answers: the same shapes on every stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loadtest.frame.theory import constant_tokens
from router.stats import SpeculationStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request.

    Attributes:
        prompt_ids: token ids of the prompt.
        max_tokens: limit of the answer.
        temperature, seed: of sampling; greedy at 0.
        eos_ids: tokens that end the answer; if there is none, it has exactly `max_tokens` tokens.
        is_exact: `eos_ids` end the answer only where a schema holds it.
        schema: JSON schema that a way with grammars holds the answer to.
        group: requests of one run share cached prefixes if this is the same.
        pause_s: the request comes so long after a place for it is free.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    eos_ids: tuple[int, ...] = ()
    is_exact: bool = False
    schema: str | None = None
    group: str = ""
    pause_s: float = 0.0

    def ignores_eos(self, *, is_constrained: bool) -> bool:
        """Return whether no token ends the answer before its limit."""
        return not self.eos_ids or (self.is_exact and not (is_constrained and self.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer; times in seconds by the clock of the run.

    Attributes:
        content: token ids, or text where the stage has no ids: equal answers have equal contents.
        num_tokens: length in tokens.
        num_first: tokens that came first, at once.
        began_s, first_s, ended_s: when it was asked, when its first text came, and its last.
        stats: of speculation.
    """

    content: tuple[int, ...] | str
    num_tokens: int
    num_first: int
    began_s: float
    first_s: float
    ended_s: float
    stats: SpeculationStats = field(default_factory=SpeculationStats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All answers of one run, in order of the requests, `batch` at a time."""

    answers: Sequence[Answer]
    batch: int

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all answers."""
        return sum(answer.num_tokens for answer in self.answers)

    @property
    def stats(self) -> SpeculationStats:
        """Statistics of speculation, of all answers together."""
        return sum((answer.stats for answer in self.answers), SpeculationStats())

    @property
    def contents(self) -> list[tuple[int, ...] | str]:
        """The contents of all answers."""
        return [answer.content for answer in self.answers]

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second while every one of `batch` places had a request.

        A run only waits for its slowest request once the last one has begun. That is a larger part
        of a run with fewer requests, and a busy server never has such a wait. A request's tokens
        are taken to come evenly.
        """
        began_s = min(one.began_s for one in self.answers)
        ends = sorted(one.ended_s for one in self.answers)
        until_s = ends[max(0, len(ends) - self.batch)]
        num_tokens = sum(
            one.num_tokens * min(1.0, (until_s - one.began_s) / (one.ended_s - one.began_s))
            for one in self.answers
        )
        return num_tokens / (until_s - began_s)


Measure = Callable[[Run], float]


def _decode_tokens_per_s(run: Run) -> float:
    tokens = sum(one.num_tokens - one.num_first for one in run.answers)
    return tokens / sum(one.ended_s - one.first_s for one in run.answers) if tokens else 0.0


def _first_ms(run: Run) -> float:
    waits = sorted(one.first_s - one.began_s for one in run.answers)
    return 1e3 * waits[len(waits) // 2]


def _accepted_share(drafter: str) -> Measure:
    def share(run: Run) -> float:
        return run.stats.num_accepted_by.get(drafter, 0) / max(1, run.num_tokens)

    return share


def _time_ms(part: str) -> Measure:
    def of_round(run: Run) -> float:
        stats = run.stats
        return float(getattr(stats.time, f"{part}_ms")) / max(1, stats.num_rounds)

    return of_round


def _token_acceptance(run: Run) -> float:
    """Return the accepted tokens over those that were at risk: all before them were accepted."""
    stats = run.stats
    at_risk = sum(
        min(accepted + 1, drafted)
        for drafted, accepted in zip(stats.per_step_drafted, stats.per_step_accepted, strict=True)
    )
    return stats.num_accepted_draft_tokens / max(1, at_risk)


def _theory_tokens(run: Run) -> float:
    """Return the tokens that rounds of these lengths would bring at one acceptance everywhere."""
    acceptance, lengths = _token_acceptance(run), run.stats.per_step_drafted
    return sum(constant_tokens(acceptance, k) for k in lengths) / max(1, len(lengths))


def _accepted_at(place: int) -> Measure:
    def share(run: Run) -> float:
        stats = run.stats
        rounds = zip(stats.per_step_drafted, stats.per_step_accepted, strict=True)
        fates = [right >= place for of, right in rounds if of >= place and right >= place - 1]
        return sum(fates) / max(1, len(fates))

    return share


def _ahead_after(place: int | None) -> Measure:
    def share(run: Run) -> float:
        found = [
            ahead > 0
            for answer in run.answers
            for accepted, ahead in zip(
                answer.stats.per_step_accepted, answer.stats.per_step_ahead[1:], strict=False
            )
            if place is None or accepted == place
        ]
        return sum(found) / max(1, len(found))

    return share


_ahead_share = _ahead_after(None)


# What a run is measured by: figures for the table, by their names in records.
MEASURES: Mapping[str, Measure] = {
    "tokens_per_s": lambda run: run.tokens_per_s,
    "decode_tokens_per_s": _decode_tokens_per_s,
    "first_ms": _first_ms,  # the median of the answers
    "tokens_per_round": lambda run: run.stats.mean_acceptance_length,  # in rounds with a draft
    "tokens_per_answer": lambda run: run.num_tokens / len(run.answers),
    "theory_tokens": _theory_tokens,  # per round; needs the rounds, which HTTP does not tell
    "token_acceptance": _token_acceptance,  # as well
    **{f"accepted_at_{place}": _accepted_at(place) for place in range(1, 9)},  # as well
    "acceptance": lambda run: run.stats.draft_acceptance_rate,
    "mean_k": lambda run: run.stats.num_draft_tokens / max(1, run.stats.num_spec_steps),
    "drafted_share": lambda run: run.stats.num_spec_steps / max(1, run.stats.num_rounds),
    # Hits: rounds behind one with a draft of whose own draft some was there; needs the rounds.
    "ahead_share": _ahead_share,
    "ahead_tokens": lambda run: run.stats.num_ahead_tokens / max(1, run.stats.num_draft_tokens),
    **{f"ahead_after_{place}": _ahead_after(place) for place in range(9)},
    "forced_share": _accepted_share("forced"),  # of the answers' tokens
    "draft_ms": _time_ms("draft"),  # of a round of one session
    "verify_ms": _time_ms("verify"),
    "queue_ms": _time_ms("queue"),
    "link_ms": _time_ms("link"),
    "loop_ms": _time_ms("loop"),
}
