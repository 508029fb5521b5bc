"""Noise on a draft's `lm_head`: just so much that it agrees with its target as often as asked.

Draft and target are grown from one source, so their last hidden states are those of the source. A
fit needs only one pass of the source over some texts. Agreement is two matrix products for each
amount of noise. Agreement is teacher-forced: at each position of the target's own text, is the
draft's best token the target's? The acceptance at temperature 1 follows from it, and is reported as
the expectation of both verification rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loadtest.grow.pair_texts import Text

_MOST_NOISE = 64.0  # in units of the weights: nothing is left of them
_FIRST_NOISE = 1 / 16
_MAX_STEPS = 40  # halvings; float32 noise has no finer values
_ROWS = 512  # positions of one matrix product
_COUPLED_TOP = 128


@dataclass(frozen=True, slots=True)
class NoiseFit:
    """The outcome of `fit_noise`.

    Attributes:
        noise: standard deviation of the noise over the root mean square of the weights.
        greedy_agreement: share of the fitted positions at which best tokens are the same.
        num_positions: how many those were.
    """

    noise: float
    greedy_agreement: float
    num_positions: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """Expected agreement of a draft with its target on the target's own texts.

    Attributes:
        greedy_agreement: share of all positions at which best tokens are the same.
        standard_error: of `greedy_agreement`, from how much the texts differ.
        on_greedy_text: the same, on greedy texts alone: the acceptance at temperature 0.
        on_sampled_text: the same, on texts sampled at temperature 1.
        coupled_acceptance: expected share accepted at temperature 1 with shared noise.
        rejection_acceptance: the same by rejection sampling, the most that any rule can reach.
        num_positions: tokens compared.
    """

    greedy_agreement: float
    standard_error: float
    on_greedy_text: float
    on_sampled_text: float
    coupled_acceptance: float
    rejection_acceptance: float
    num_positions: int


@torch.inference_mode()
def last_states(model: Any, texts: Iterable[Text]) -> Tensor:
    """Return the inputs of a Llama's `lm_head` at the places that predict the replies' tokens.

    Returns:
        [tokens of all replies, hidden_size] float32, in the order of `texts`.
    """
    states = []
    for text in texts:
        ids = torch.tensor([text.prompt + text.reply])
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[0]
        states.append(hidden[len(text.prompt) - 1 : -1].float())
    return torch.cat(states)


def perturbed_head(head: Tensor, noise: float, seed: int) -> Tensor:
    """`head`, [vocab_size, hidden_size], with Gaussian noise of a relative size; same dtype."""
    generator = torch.Generator().manual_seed(seed)
    weights = head.float()
    scale = noise * weights.pow(2).mean().sqrt()
    return (weights + scale * torch.randn(head.shape, generator=generator)).to(head.dtype)


def check_acceptance(acceptance: float, tolerance: float) -> None:
    """Check that such an agreement can be asked for.

    Raises:
        ValueError: names the value and its limits.
    """
    if not 0 < acceptance <= 1:
        raise ValueError(f"acceptance must be above 0 and at most 1, got {acceptance}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be above 0 and below 1, got {tolerance}")


def fit_noise(
    states: Tensor,  # [n, hidden_size] float32
    head: Tensor,  # [vocab_size, hidden_size]
    acceptance: float,
    *,
    tolerance: float,
    seed: int,
) -> NoiseFit:
    """Find the noise at which `perturbed_head` agrees with `head` in a share `acceptance` of rows.

    Raises:
        ValueError: `acceptance` or `tolerance` is out of its range, or no noise comes as near.
    """
    check_acceptance(acceptance, tolerance)
    if acceptance == 1:
        return NoiseFit(0.0, 1.0, len(states))
    wanted = _best_tokens(states, head)

    def agreement_at(noise: float) -> float:
        best = _best_tokens(states, perturbed_head(head, noise, seed))
        return float((best == wanted).double().mean())

    low, high = 0.0, _FIRST_NOISE
    while agreement_at(high) > acceptance and high < _MOST_NOISE:
        low, high = high, 2 * high
    nearest = 1.0
    for _ in range(_MAX_STEPS):
        noise = (low + high) / 2
        agreement = agreement_at(noise)
        nearest = min(nearest, agreement, key=lambda value: abs(value - acceptance))
        if abs(agreement - acceptance) <= tolerance:
            return NoiseFit(noise, agreement, len(states))
        low, high = (noise, high) if agreement > acceptance else (low, noise)
    raise ValueError(
        f"acceptance {acceptance} was not met within tolerance {tolerance} on {len(states)} "
        f"positions; the nearest is {nearest:.4f}"
    )


def coupled_acceptance(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Chance that two draws with one Gumbel noise agree: sum_x 1 / sum_y max(p_y/p_x, q_y/q_x).

    Inputs [n, V], result [n]. Only the `_COUPLED_TOP` tokens with the largest min(p, q) are summed.
    So the result is a lower bound of `models.distill.losses.coupled`, all rows at once.
    """
    overlap, top = torch.minimum(target_probs, draft_probs).topk(
        min(_COUPLED_TOP, target_probs.shape[-1]), dim=-1
    )
    total = torch.zeros_like(overlap)
    for column in range(top.shape[-1]):
        chosen = top[:, column : column + 1]
        target_ratio = target_probs / target_probs.gather(-1, chosen).clamp_min(1e-30)
        draft_ratio = draft_probs / draft_probs.gather(-1, chosen).clamp_min(1e-30)
        total[:, column] = 1.0 / torch.maximum(target_ratio, draft_ratio).sum(dim=-1)
    return torch.where(overlap > 0, total, 0.0).sum(dim=-1)


@torch.inference_mode()
def measure_agreement(target: Any, draft: Any, texts: Sequence[Text]) -> Agreement:
    """Compare two loaded models of transformers along the target's `texts`."""
    agree: dict[bool, list[Tensor]] = {False: [], True: []}
    shared, rejection = [], []
    for text in texts:
        target_logits, draft_logits = _reply_logits(target, text), _reply_logits(draft, text)
        same = target_logits.argmax(dim=-1) == draft_logits.argmax(dim=-1)
        agree[text.is_sampled].append(same.double())
        if text.is_sampled:
            target_probs, draft_probs = target_logits.softmax(-1), draft_logits.softmax(-1)
            shared.append(coupled_acceptance(target_probs, draft_probs))
            rejection.append(torch.minimum(target_probs, draft_probs).sum(dim=-1))
    everywhere = agree[False] + agree[True]
    return Agreement(
        greedy_agreement=_mean(everywhere),
        standard_error=_standard_error(everywhere),
        on_greedy_text=_mean(agree[False]),
        on_sampled_text=_mean(agree[True]),
        coupled_acceptance=_mean(shared),
        rejection_acceptance=_mean(rejection),
        num_positions=sum(len(part) for part in everywhere),
    )


def max_logit_difference(
    states: Tensor,  # states of the source along `texts`, [n, hidden_size] float32
    head: Tensor,  # [vocab_size, hidden_size], the lm_head that `grown` was given
    grown: Any,
    texts: Iterable[Text],
) -> float:
    """Largest difference of any logit between a grown model and the source it came from."""
    largest = 0.0
    start = 0
    for text in texts:
        stop = start + len(text.reply)
        expected = states[start:stop] @ head.float().T
        largest = max(largest, float((_reply_logits(grown, text) - expected).abs().max()))
        start = stop
    return largest


def _best_tokens(states: Tensor, head: Tensor) -> Tensor:
    columns = head.float().T
    return torch.cat([(part @ columns).argmax(dim=-1) for part in states.split(_ROWS)])


@torch.inference_mode()
def _reply_logits(model: Any, text: Text) -> Tensor:
    ids = torch.tensor([text.prompt + text.reply])
    logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits[len(text.prompt) - 1 : -1].float()


def _mean(parts: Sequence[Tensor]) -> float:
    return round(float(torch.cat(list(parts)).mean()), 4)


def _standard_error(parts: Sequence[Tensor]) -> float:
    """Return the standard error of the mean over all positions, as a ratio of sums over texts.

    Positions of one text are not independent. The error is 0 for a single text, which says nothing.
    """
    lengths = torch.tensor([len(part) for part in parts], dtype=torch.double)
    sums = torch.stack([part.sum() for part in parts])
    rest = sums - lengths * (sums.sum() / lengths.sum())
    num_texts = len(parts)
    if num_texts == 1:
        return 0.0
    variance = rest.pow(2).sum() * num_texts / (num_texts - 1)
    return round(float(variance.sqrt() / lengths.sum()), 4)
