"""The ways to steer that are compared, as the `lookahead` object of a request."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from deployments.api.lookahead.fields import LookaheadOptions

GREEDY, CDLH, CDSL = "greedy", "cdlh", "cdsl"
PAPER, GAIN, RECOMMENDED = "paper", "gain", "as recommended"  # how CDSL and its CDLH are set
Thresholds = tuple[float, float]  # a_t, r_t

_DEFAULTS = LookaheadOptions(method="cdsl")  # terms of a request that says nothing else


@dataclass(frozen=True, kw_only=True)
class Terms:
    """One way: the fields of `lookahead`, by default the API's, and the temperature beside it."""

    method: str = CDSL  # "off": greedy
    length: int = _DEFAULTS.length
    candidates: int = _DEFAULTS.candidates
    acceptance: str = _DEFAULTS.acceptance
    accept_threshold: float = _DEFAULTS.accept_threshold
    reward_threshold: float = _DEFAULTS.reward_threshold
    reward_weight: float = _DEFAULTS.reward_weight
    generation: str = _DEFAULTS.generation
    commit: str = _DEFAULTS.commit
    verification: str = _DEFAULTS.verification
    temperature: float = 0.0

    def lookahead(self, reward: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return a request's object with this reward; None if the text is not steered."""
        if self.method == "off":
            return None
        fields: dict[str, Any] = {
            "method": self.method,
            "reward": dict(reward),
            "length": self.length,
            "candidates": self.candidates,
            "reward_weight": self.reward_weight,
            "commit": self.commit,
        }
        if self.method == CDSL:
            fields |= {
                "acceptance": self.acceptance,
                "accept_threshold": self.accept_threshold,
                "reward_threshold": self.reward_threshold,
                "generation": self.generation,
                "verification": self.verification,
            }
        return fields

    def by_rule(self, acceptance: str, thresholds: Thresholds | None = None) -> Terms:
        """Return the terms for a rule, with its commit: a token in the paper, else the gain."""
        commit = "token" if acceptance == PAPER else "gain"
        a_t, r_t = thresholds or (self.accept_threshold, self.reward_threshold)
        return replace(
            self, acceptance=acceptance, commit=commit, accept_threshold=a_t, reward_threshold=r_t
        )

    def ways(self) -> dict[str, Terms]:
        """Greedy, CDLH and these: of the same commit, lengths and weights."""
        # Terms that CDLH does not read keep their defaults, so that equal ways are equal terms.
        cdlh = Terms(
            method=CDLH,
            length=self.length,
            candidates=self.candidates,
            reward_weight=self.reward_weight,
            commit=self.commit,
            temperature=self.temperature,
        )
        return {GREEDY: Terms(method="off", temperature=self.temperature), CDLH: cdlh, CDSL: self}


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Add the options that CDLH and CDSL share."""
    given = Terms()
    parser.add_argument(
        "--length", type=int, default=given.length, help="of a draft and of a roll-out"
    )
    parser.add_argument("--candidates", type=int, default=given.candidates)
    parser.add_argument("--reward-weight", type=float, default=given.reward_weight)
    parser.add_argument("--generation", choices=("lookahead", "plain"), default=given.generation)


def add_rule(parser: argparse.ArgumentParser) -> None:
    """Add the options of one rule; defaults are the recommended values."""
    given = Terms()
    parser.add_argument("--acceptance", choices=(PAPER, GAIN), default=given.acceptance)
    parser.add_argument(
        "--accept-threshold", type=float, default=given.accept_threshold, help="a_t"
    )
    parser.add_argument(
        "--reward-threshold", type=float, default=given.reward_threshold, help="r_t"
    )
    parser.add_argument(
        "--commit",
        choices=("token", "gain", "rollout"),
        default=given.commit,
        help="of cdsl and of cdlh beside it",
    )


def terms_of(arguments: argparse.Namespace) -> Terms:
    """Return the terms of the command line; those without an option are as recommended."""
    names = (name for name in Terms.__dataclass_fields__ if name != "temperature")
    return Terms(**{name: getattr(arguments, name) for name in names if hasattr(arguments, name)})
