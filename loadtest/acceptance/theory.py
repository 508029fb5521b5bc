"""Tokens per round: what was measured, and what two models of acceptance say it should be.

A round of k draft tokens commits the accepted ones and exactly one more. The first model accepts
every token with probability a, whatever came before. A round then commits (1 - a^(k+1)) / (1 - a)
tokens on average. (Leviathan, Kalman, Matias, arXiv 2211.17192, equation 1.) In truth some texts
and some places are easier than others. A position is only tried when all before it were accepted.
The second model lets each position have its own probability, given that those before were accepted.
A round then commits 1 + S_1 + ... + S_k, where S_j is their product up to j (Kaplan and Meier's
estimate).

Both count a position only where it was at risk: what comes after a rejection was not observed.
Rounds of one prompt are alike, so intervals come from drawing whole prompts again (a cluster
bootstrap). Knows only counts; nothing of models or tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadtest.report.ratios import Estimate

Counts = NDArray[np.float64]

_INTERVAL = (2.5, 97.5)  # percentiles
_NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class Line:
    """Tokens per round at one k; the models' figures less the measured one come with intervals."""

    k: int
    num_rounds: int
    measured: Estimate
    constant: float  # (1 - a^(k+1)) / (1 - a)
    by_position: float  # 1 + S_1 + ... + S_k
    constant_excess: Estimate
    by_position_excess: Estimate


@dataclass(frozen=True)
class Analysis:
    """All k of one workload under one rule. `acceptance` and `hazards` are of all k together."""

    acceptance: Estimate  # a: accepted / at risk
    hazards: list[float]  # by position: accepted / at risk
    num_at_risk: list[int]
    lines: list[Line]


def constant_tokens(acceptance: float, k: int) -> float:
    """Return (1 - a^(k+1)) / (1 - a), and k + 1 at a = 1: tokens of a round."""
    return float(sum(acceptance**j for j in range(k + 1)))


def position_tokens(hazards: Sequence[float], k: int) -> float:
    """1 + S_1 + ... + S_k: tokens of a round if the j-th is accepted with `hazards[j - 1]`."""
    return 1.0 + float(np.cumprod(hazards[:k]).sum())


def analyse(
    accepted: Mapping[int, Sequence[Sequence[int]]],
    seed: int = 0,
    drafted: Mapping[int, Sequence[Sequence[int]]] | None = None,
) -> Analysis:
    """Estimates from `accepted[k][prompt]`, the accepted tokens of each round of that prompt.

    Every k has the same prompts in the same order, and at least one round of each. A round had
    exactly k draft tokens, or as many as `drafted` has in that place. Fewer are drafted at the end
    of a text, and positions behind a draft were not at risk.

    Raises:
        ValueError: there are no rounds, other prompts for another k, or more accepted than k.
    """
    _check(accepted)
    num_prompts = len(next(iter(accepted.values())))
    num_positions = max(accepted)
    accepted_counts = np.zeros((num_prompts, num_positions))
    at_risk = np.zeros((num_prompts, num_positions))
    for k, prompts in accepted.items():
        for index, rounds in enumerate(prompts):
            lengths = [k] * len(rounds) if drafted is None else drafted[k][index]
            for num_accepted, num_drafted in zip(rounds, lengths, strict=True):
                accepted_counts[index, :num_accepted] += 1
                at_risk[index, : min(num_accepted + 1, num_drafted)] += 1
    # Row 0 is the sample itself, each further row a resample: how often each prompt was drawn.
    choose = np.random.default_rng(seed)
    resamples = choose.multinomial(num_prompts, [1 / num_prompts] * num_prompts, _NUM_RESAMPLES)
    weights = np.vstack([np.ones(num_prompts), resamples])
    acceptance, hazards = _estimate_acceptance(weights @ accepted_counts, weights @ at_risk)
    return Analysis(
        acceptance=_with_interval(acceptance),
        hazards=hazards[0].tolist(),
        num_at_risk=[int(count) for count in at_risk.sum(0)],
        lines=[_line(k, accepted[k], weights, acceptance, hazards) for k in sorted(accepted)],
    )


def _check(accepted: Mapping[int, Sequence[Sequence[int]]]) -> None:
    sizes = {len(prompts) for prompts in accepted.values()}
    if len(sizes) != 1 or sizes == {0}:
        raise ValueError(f"each k needs the same prompts, at least one; got {sorted(sizes)}")
    for k, prompts in accepted.items():
        for rounds in prompts:
            if len(rounds) == 0 or not 0 <= min(rounds) <= max(rounds) <= k:
                raise ValueError(f"k = {k}: rounds must accept 0 to {k} tokens, got {list(rounds)}")


def _estimate_acceptance(accepted: Counts, at_risk: Counts) -> tuple[Counts, Counts]:
    """a of each resample, and its hazards; a position that none reached counts with a itself."""
    acceptance = accepted.sum(1) / at_risk.sum(1)
    hazards = np.divide(
        accepted,
        at_risk,
        out=np.repeat(acceptance[:, None], accepted.shape[1], 1),
        where=at_risk > 0,
    )
    return acceptance, hazards


def _line(
    k: int,
    prompts: Sequence[Sequence[int]],
    weights: Counts,
    acceptance: Counts,
    hazards: Counts,
) -> Line:
    num_rounds = np.array([len(rounds) for rounds in prompts], dtype=float)
    num_tokens = np.array([sum(rounds) + len(rounds) for rounds in prompts], dtype=float)
    measured = (weights @ num_tokens) / (weights @ num_rounds)
    constant = np.array([constant_tokens(a, k) for a in acceptance])
    by_position = 1.0 + np.cumprod(hazards[:, :k], axis=1).sum(1)
    return Line(
        k=k,
        num_rounds=int(num_rounds.sum()),
        measured=_with_interval(measured),
        constant=float(constant[0]),
        by_position=float(by_position[0]),
        constant_excess=_with_interval(constant - measured),
        by_position_excess=_with_interval(by_position - measured),
    )


def _with_interval(values: Counts) -> Estimate:
    """Return the first value with the interval of the others, which come from resamples."""
    low, high = np.percentile(values[1:], _INTERVAL)
    return Estimate(float(values[0]), float(low), float(high))
