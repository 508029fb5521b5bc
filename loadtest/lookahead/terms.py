"""How texts are steered: the ways that are compared, as the `lookahead` object of a request."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

GREEDY, CDLH, CDLH_WHOLE, CDSL = "greedy", "cdlh", "cdlh, whole roll-outs", "cdsl"
# So long that the baseline sees a sentence's end; the same for all ways.
_LENGTH, _CANDIDATES, _WEIGHT = 6, 8, 8.0


@dataclass(frozen=True, kw_only=True)
class Terms:
    """One way: the fields of `lookahead`, and the temperature beside it."""

    method: str = "cdsl"  # "off": greedy
    length: int = _LENGTH
    candidates: int = _CANDIDATES
    accept_threshold: float = 0.0
    reward_threshold: float = 1.0
    reward_weight: float = _WEIGHT
    generation: str = "lookahead"
    commit: str = "gain"
    verification: str = "hard"
    temperature: float = 0.0

    def lookahead(self, reward: Mapping[str, Any]) -> dict[str, Any] | None:
        """The object of a request with this reward; None: the text is not steered."""
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
        if self.method == "cdsl":
            fields |= {
                "accept_threshold": self.accept_threshold,
                "reward_threshold": self.reward_threshold,
                "generation": self.generation,
                "verification": self.verification,
            }
        return fields

    def ways(self) -> dict[str, Terms]:
        """Greedy, CDLH, its cheaper form, and these, of the same lengths and weights."""
        cdlh = replace(self, method="cdlh", commit="token", verification="hard")
        return {
            GREEDY: replace(cdlh, method="off"),
            CDLH: cdlh,
            CDLH_WHOLE: replace(cdlh, commit="rollout"),
            CDSL: self,
        }


def add_terms(parser: argparse.ArgumentParser) -> None:
    """The options that `terms_of` reads."""
    parser.add_argument("--length", type=int, default=_LENGTH, help="of a draft and of a roll-out")
    parser.add_argument("--candidates", type=int, default=_CANDIDATES)
    parser.add_argument("--accept-threshold", type=float, default=0.0, help="a_t")
    parser.add_argument("--reward-threshold", type=float, default=1.0, help="r_t")
    parser.add_argument("--reward-weight", type=float, default=_WEIGHT)
    parser.add_argument("--generation", choices=("lookahead", "plain"), default="lookahead")
    parser.add_argument(
        "--commit", choices=("token", "gain", "rollout"), default="gain", help="of cdsl"
    )


def terms_of(arguments: argparse.Namespace) -> Terms:
    """Of the command line."""
    return Terms(
        length=arguments.length,
        candidates=arguments.candidates,
        accept_threshold=arguments.accept_threshold,
        reward_threshold=arguments.reward_threshold,
        reward_weight=arguments.reward_weight,
        generation=arguments.generation,
        commit=arguments.commit,
    )
