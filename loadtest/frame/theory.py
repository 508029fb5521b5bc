"""The textbook of speculative decoding, as a calculator: `python -m loadtest --theory A C K`.

The model takes every draft token to be accepted with probability a, whatever came before. A round
of k draft tokens commits the accepted ones and one more. That is E = (1 - a^(k+1)) / (1 - a) on
average. A round costs one target pass and k draft steps, each a share c of that pass. So drafting
is E / (1 + k c) times as fast as plain decoding. The source is Leviathan, Kalman, Matias, arXiv
2211.17192, equation 1, theorem 3.8. A pass of k + 1 rows is taken to be as long as one of one row.
`expected.py` has both.

In truth some places are easier than others. A place is only tried when all before it were accepted.
A second model has a probability for each place, given that those before were accepted. A round then
commits 1 + S_1 + ... + S_k. S_j is the product of these up to j (Kaplan and Meier's estimate).

Some texts name the cost the other way round: a target pass takes c = 10 to 50 draft steps. A c
above 1 is read as target over draft. A draft step that takes longer than a target pass never pays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import mul
from pathlib import Path

HIGHEST_K = 16  # that the calculator looks for the best k up to
_MOST_K = 1000  # the table has a line for each
_DRAWN_KS = (2, 4, 6, 8, 10)


def constant_tokens(acceptance: float, k: int) -> float:
    """Return (1 - a^(k+1)) / (1 - a), and k + 1 at a = 1: tokens of a round."""
    return float(sum(acceptance**j for j in range(k + 1)))


def position_tokens(hazards: Sequence[float], k: int) -> float:
    """Return 1 + S_1 + ... + S_k: tokens of a round with acceptance `hazards[j - 1]` at place j."""
    return 1.0 + sum(accumulate(hazards[:k], mul))


def speed_up(tokens_per_round: float, k: int, cost_ratio: float) -> float:
    """Return the tokens per time over those of plain decoding.

    Args:
        tokens_per_round: E, accepted tokens and one of the target.
        k: draft steps of a round.
        cost_ratio: c, a draft step over a target pass of one row.
    """
    return tokens_per_round / (1 + k * cost_ratio)


def best_length(acceptance: float, cost_ratio: float, highest: int = HIGHEST_K) -> int:
    """Return the k of 0 to `highest` with the largest speed-up; the smallest of several."""
    return max(
        range(highest + 1),
        key=lambda k: (speed_up(constant_tokens(acceptance, k), k, cost_ratio), -k),
    )


def step_share(cost: float) -> float:
    """Return the share of a target pass that a draft step takes, of a cost named either way.

    Raises:
        ValueError: it is not a number of at least 0.
    """
    if not 0.0 <= cost < float("inf"):
        raise ValueError(f"c must be a number of at least 0, got {cost:g}")
    return cost if cost <= 1.0 else 1.0 / cost


def theory_lines(acceptance: float, cost: float, k: int) -> Iterator[str]:
    """Yield the calculator's lines; `cost` is draft over target, or above 1 target over draft.

    Raises:
        ValueError: a is not within 0 to 1, c is negative, or k is that or huge.
    """
    cost_ratio = step_share(cost)
    if not 0.0 <= acceptance <= 1.0:
        raise ValueError(f"a must be within 0 to 1, got {acceptance:g}")
    if not 0 <= k <= _MOST_K:
        raise ValueError(f"k must be within 0 to {_MOST_K}, got {k}")
    tokens = constant_tokens(acceptance, k)
    best = best_length(acceptance, cost_ratio, max(HIGHEST_K, k))
    yield _cost_in_words(cost)
    yield f"acceptance rate a = {acceptance:g}, cost ratio c = {cost_ratio:.3g}, k = {k}"
    yield f"tokens per round E = (1 - a^(k+1)) / (1 - a) = {tokens:.2f}"
    yield f"speed-up E / (1 + k c) = {speed_up(tokens, k, cost_ratio):.2f}"
    most = speed_up(constant_tokens(acceptance, best), best, cost_ratio)
    yield f"best k = {best}, with a speed-up of {most:.2f}"
    yield ""
    yield f"{'k':>3}{'E':>8}{'speed-up':>10}"
    for length in range(max(best + 2, k, 8) + 1):
        tokens = constant_tokens(acceptance, length)
        mark = "  best" if length == best else ""
        yield f"{length:>3}{tokens:>8.2f}{speed_up(tokens, length, cost_ratio):>10.2f}{mark}"


def _cost_in_words(cost: float) -> str:
    share = step_share(cost)
    if cost > 1.0:
        return (
            f"c = {cost:g} is above 1, so it is target over draft: a pass takes as long as "
            f"{cost:g} draft steps, and c = 1/{cost:g} = {share:.3g} below"
        )
    steps = f", a pass as long as {1 / share:.3g} of them" if share else ""
    return f"c = {cost:g} is draft over target: a draft step takes {share:.3g} of a pass{steps}"


def draw_theory(cost_ratio: float, path: Path) -> None:
    """Draw speed-up and tokens of a round over acceptance, a line for each k, into a PNG file."""
    import matplotlib.pyplot as plt  # here: most runs draw nothing

    figure, (speeds, tokens) = plt.subplots(1, 2, figsize=(6.8, 2.8), layout="constrained")
    rates = [rate / 100 for rate in range(10, 100)]
    for k in _DRAWN_KS:
        expected = [constant_tokens(rate, k) for rate in rates]
        speeds.plot(rates, [speed_up(each, k, cost_ratio) for each in expected], label=f"k = {k}")
        tokens.plot(rates, expected, label=f"k = {k}")
    speeds.axhline(1.0, color="#888888", linewidth=1)
    for axis, title, label in (
        (speeds, f"E / (1 + k c), c = {cost_ratio:.3g}", "times plain decoding"),
        (tokens, "E = (1 - a^(k+1)) / (1 - a)", "tokens per round"),
    ):
        axis.set_title(title, fontsize="medium")
        axis.set_xlabel("acceptance rate a", fontsize="small")
        axis.set_ylabel(label, fontsize="small")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="x-small")
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)
