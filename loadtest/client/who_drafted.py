"""Shows who drafted the tokens of a load (a draft model, copies, the grammar) and why.

Copied and forced text costs no step of a model. So it is drafted even if a draft model does not
pay. An acceptance or a mean k alone does not tell the two apart. The planner's own reasons come
with answers that were requested with `speculation.details`.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from loadtest.client.answers import Answer
from router.drafters.forced import FORCED
from router.drafters.registry import DRAFTERS
from router.drafters.repeats.known import KNOWN
from router.drafters.repeats.prediction import PREDICTION
from router.rounds import HEADS

# Drafters without a draft model: free ones, or those in the target's own process.
_OTHERS = {
    *(FORCED.name, PREDICTION.name, KNOWN.name, HEADS.name),
    *(kind.name for kind in DRAFTERS.values() if kind.traits.is_free),
}
_EXPLAINED = 4  # after every so many answers the next requests are asked for with their rounds
_LONG_STEP = 0.5  # part of a pass
_LITTLE = 0.05  # a draft model's share of the draft tokens below which the lines say why


@dataclass
class _Sums:
    """Counts over the answers of one kind."""

    num_answers: int = 0
    num_rounds: int = 0  # that had a draft
    drafted: Counter[str] = field(default_factory=Counter)  # tokens, by who drafted them
    accepted: Counter[str] = field(default_factory=Counter)

    def add(self, speculation: Mapping[str, Any]) -> None:
        self.num_answers += 1
        self.num_rounds += speculation["num_spec_steps"]
        self.drafted.update(speculation["num_draft_tokens_by"])
        self.accepted.update(speculation["num_accepted_draft_tokens_by"])

    def content(self) -> dict[str, Any]:
        num_drafted = self.drafted.total()
        return {
            "num_answers": self.num_answers,
            "num_rounds": self.num_rounds,
            "k": num_drafted / self.num_rounds if self.num_rounds else None,
            "acceptance": self.accepted.total() / num_drafted if num_drafted else None,
            "num_draft_tokens_by": dict(self.drafted),
            "num_accepted_draft_tokens_by": dict(self.accepted),
            "draft_model_share": (
                sum(_by_models(self.drafted).values()) / num_drafted if num_drafted else None
            ),
        }


class WhoDrafted:
    """Sums what answers say of their drafts, by kind of request."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Sums] = {}
        self._whys: list[Mapping[str, Any]] = []  # reasons of planned rounds, with their k

    @property
    def is_told(self) -> bool:
        """True if the server reports speculation; other servers may not."""
        return bool(self._kinds)

    @property
    def wants_details(self) -> bool:
        """True if the next request should ask for its rounds and their reasons."""
        return self.is_told and self._whole().num_answers % _EXPLAINED == 0

    def take(self, kind: str, answer: Answer) -> None:
        """Take in an answer that came to its end."""
        if "num_draft_tokens_by" not in answer.speculation:
            return
        self._kinds.setdefault(kind, _Sums()).add(answer.speculation)
        for choice in answer.details:
            planned = (one for one in choice["rounds"] if one["why"] is not None)
            self._whys += [one["why"] | {"k": one["k"]} for one in planned]

    def content(self) -> dict[str, Any]:
        """Return all figures for a result file; `k` is draft tokens a round that had a draft."""
        whole = self._whole()
        return {
            "kinds": {name: sums.content() for name, sums in sorted(self._kinds.items())},
            "whole": whole.content(),
            "planned": self._planned(),
            "in_words": self.in_words(),
        }

    def lines(self) -> Iterator[str]:
        """Yield a table for people, a line each kind, and what it says in words."""
        if not self.is_told:
            yield "The server does not say who drafted."
            return
        names = sorted(self._whole().drafted)
        head = "".join(f"{name:>14}" for name in names)
        yield f"{'draft tokens of':20}{'k':>7}{'accepted':>10}{head}"
        for kind, sums in [*sorted(self._kinds.items()), ("all", self._whole())]:
            figures = sums.content()
            k, share = figures["k"], figures["acceptance"]
            cells = "".join(f"{sums.drafted[name]:14,}" for name in names)
            k_cell = "-" if k is None else f"{k:.2f}"
            yield f"{kind:20}{k_cell:>7}{'-' if share is None else f'{share:.0%}':>10}{cells}"
        yield self.in_words()

    def in_words(self) -> str:
        """Say how much the draft model drafted, and where that is little, why."""
        whole = self._whole()
        num_drafted = whole.drafted.total()
        num_by_model = sum(_by_models(whole.drafted).values())
        said = f"The draft model drafted {num_by_model:,} of {num_drafted:,} draft tokens."
        if num_drafted and num_by_model >= _LITTLE * num_drafted:
            return said
        return " ".join([said, *self._why(), *_ADVICE])

    def _why(self) -> Iterator[str]:
        planned = self._planned()
        if not planned["num_rounds"]:
            yield "No planned round was looked at."
            return
        yield (
            f"The planner chose k = 0 in {planned['share_of_no_draft']:.0%} of the "
            f"{planned['num_rounds']} rounds that were looked at."
        )
        if not planned["drafting_tokens_per_ms"]:
            return
        num_sessions = planned["num_sessions"]
        yield (
            f"With {num_sessions:.0f} request{'s' * (num_sessions != 1)} at once it expected "
            f"{planned['drafting_tokens_per_ms']:.2f} tokens/ms with the draft model and "
            f"{planned['plain_tokens_per_ms']:.2f} without it: a draft step took "
            f"{planned['step_ms']:.2f} ms, a pass of the target {planned['pass_ms']:.2f} ms."
        )
        if planned["step_ms"] > _LONG_STEP * planned["pass_ms"]:
            yield (
                "A step that long beside a pass hardly pays: the target is small beside the draft "
                "model, or the machine is busy."
            )
        elif num_sessions > 1:
            yield "Requests share passes, so fewer users (-u 1) leave more to gain."

    def _planned(self) -> dict[str, Any]:
        """Medians over the planned rounds without a draft whose plan weighed both ways."""
        weighed = [
            why
            for why in self._whys
            if why["k"] == 0 and why["drafting_tokens_per_ms"] and why["plain_tokens_per_ms"]
        ]
        num_without = sum(why["k"] == 0 for why in self._whys)
        return {
            "num_rounds": len(self._whys),
            "share_of_no_draft": num_without / len(self._whys) if self._whys else None,
            **{
                name: statistics.median(why[name] for why in weighed) if weighed else None
                for name in _WEIGHED
            },
        }

    def _whole(self) -> _Sums:
        whole = _Sums()
        for sums in self._kinds.values():
            whole.num_answers += sums.num_answers
            whole.num_rounds += sums.num_rounds
            whole.drafted += sums.drafted
            whole.accepted += sums.accepted
        return whole


_WEIGHED = (
    *("num_sessions", "drafting_tokens_per_ms", "plain_tokens_per_ms"),
    *("step_ms", "pass_ms"),
)
_ADVICE = (
    "Copied and forced text costs no step, so it is drafted all the same.",
    "With --k 4 the draft model drafts whether it pays or not.",
)


def _by_models(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if name not in _OTHERS}
