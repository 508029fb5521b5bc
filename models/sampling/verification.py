"""Samples tokens and verifies drafts. Pure functions; they know neither sessions nor engines.

Both rules (`models.protocol.rules`) give exactly the target's distribution. Each verdict is a
function of its inputs and of noise keyed by (seed, position).

`coupled`: the target samples t = argmax(score + g(seed, position, token)) in every row. A draft
token is accepted iff it equals t. The text is then a function of the seed and the target's logits
alone. No draft, k or batch can change it, and only ids travel (Daliri et al., arXiv 2408.07978). So
a draft may be a tree (`draft_tree.py`): the target goes down it by its own tokens. Greedy is the
same with no noise, under either rule.

`rejection`: a draft token x is accepted with probability min(1, target(x) / draft(x)). The
recovered token follows the first rejection; it is sampled from the normalised positive part of
target - draft. The bonus token follows a whole draft; it is sampled from the target (Leviathan,
Kalman, Matias, arXiv 2211.17192). It accepts the most that any rule for one draft can, but the text
depends on the draft. The draft, the test and the recovered token take their noise from domains of
their own. Noise that chose the draft token must not decide on it. A row without a draft is sampled
as under `coupled`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.device import array_to_device, fetch, to_device
from models.protocol.messages import Sampling
from models.protocol.rules import RULES
from models.sampling.draft_probs import DraftRow
from models.sampling.draft_tree import DraftTree
from models.sampling.noise import DOMAIN_RESIDUAL, DOMAIN_TEST, DOMAIN_TOKEN, gumbel_noise, uniform
from models.sampling.truncation import WEIGHT_ONE


@dataclass(frozen=True, slots=True)
class VerifiedDraft:
    """A draft for a rule's function. Row i follows draft[:i]; 1 <= num_rows <= k + 1."""

    first_row: int  # first of its rows in the scores
    num_rows: int
    draft: Sequence[int]  # [k]
    draft_rows: Sequence[DraftRow]  # [k] what each was sampled from; [] where no rule needs it
    position: int  # absolute index of draft[0]
    seed: int
    eos_ids: Collection[int]


class Acceptance(NamedTuple):
    """`num_accepted` draft tokens are accepted and `token` follows them."""

    num_accepted: int
    token: int


# Verifies drafts by the scores of their rows, [R, V] float32; see `verify_by_rejection`.
RuleFunction = Callable[[Tensor, Sequence[VerifiedDraft]], list[list[int]]]


def needs_draft_probs(sampling: Sampling) -> bool:
    """Return whether a draft is verified by the distributions it was sampled from."""
    return sampling.temperature > 0 and RULES[sampling.verification].needs_draft_probs


def rule_function(sampling: Sampling) -> RuleFunction | None:
    """Return the function of the session's rule; None: the target's own samples decide."""
    rule = RULES[sampling.verification]
    return _loaded(rule.function) if rule.function and sampling.temperature > 0 else None


@cache
def _loaded(place: str) -> RuleFunction:
    function: RuleFunction = pkgutil.resolve_name(place)
    return function


def draw_ids(
    scores: Tensor,  # [R, V] float32 from `process_logits`
    samplings: Sequence[Sampling],  # [R]
    positions: Sequence[int],  # [R] absolute index of the token sampled from the row
) -> Tensor:
    """Sample one token id per row, [R] int64; the lowest id where scores tie. Safe to repeat.

    A row of nothing but -inf gives some id: the caller checks constrained tokens by their mask.
    """
    return noisy_scores(scores, samplings, positions).argmax(dim=1)


def noisy_scores(
    scores: Tensor,  # [R, V] float32 from `process_logits`
    samplings: Sequence[Sampling],  # [R]
    positions: Sequence[int],  # [R]
) -> Tensor:
    """Scores with the noise of their rows, [R, V], whose largest is the sample.

    They are `scores` itself where no row has a temperature.
    """
    rows = [row for row, sampling in enumerate(samplings) if sampling.temperature > 0]
    if rows:
        noise = gumbel_noise(
            [samplings[row].seed for row in rows],
            [positions[row] for row in rows],
            scores.shape[1],
            scores.device,
        )
        if len(rows) == len(samplings):
            scores = noise.add_(scores)
        else:
            index = to_device(rows, scores.device)
            scores = scores.index_copy(0, index, noise.add_(scores[index]))
    return scores


def accept_matching(
    draft: Sequence[int],  # [k]
    drawn: Sequence[int],  # [m] samples of rows after draft[:i], or what the rule's function gave
    eos_ids: Collection[int],
) -> Acceptance:
    """Return the longest draft prefix that the target sampled too, and the target's next token.

    1 <= m <= k + 1. It stops at an eos the target sampled, which is then `token`: nothing follows
    it. If there are fewer rows than k + 1, the draft tokens without a row are rejected.
    """
    for num_accepted, token in enumerate(drawn[:-1]):
        if token != draft[num_accepted] or token in eos_ids:
            return Acceptance(num_accepted, token)
    return Acceptance(len(drawn) - 1, drawn[-1])


def accept_in_tree(
    tree: DraftTree,
    drawn: Sequence[int],  # [rows of the tree] the target's sample after each row's path
    eos_ids: Collection[int],
) -> tuple[list[int], int]:
    """Return the rows whose tokens the target sampled too, and its token after the last.

    It works as `accept_matching` does, from each row to the one after it that has the target's
    token. Two such rows after one are allowed: they are the same text.
    """
    children: dict[tuple[int, int], int] = {}
    for row in range(len(tree) - 1, 0, -1):
        children[tree.parents[row], tree.tokens[row]] = row
    rows = [0]
    while drawn[rows[-1]] not in eos_ids:
        child = children.get((rows[-1], drawn[rows[-1]]))
        if child is None:
            break
        rows.append(child)
    return rows, drawn[rows[-1]]


def verify_by_rejection(
    scores: Tensor,  # [R, V] float32 from `process_logits`, temperature above 0
    drafts: Sequence[VerifiedDraft],
) -> list[list[int]]:
    """Give for each draft the tokens that follow its anchor: the accepted ones, then one more.

    The last is the recovered token after the first rejection, or the bonus token after a whole
    draft. It may be a draft token itself: an accepted eos, or one after which there is no row. Only
    rounding, or a row of nothing but -inf, can leave nothing positive of target - draft. Then the
    recovered token is sampled from the target's distribution. Safe to repeat.
    """
    tested = [d.first_row + i for d in drafts for i in range(_num_tests(d))]
    probs = _TargetProbs(scores, tested)
    token_probs = probs.of([token for d in drafts for token in d.draft[: _num_tests(d)]])
    texts: list[list[int]] = []
    rejected: list[tuple[int, int]] = []  # (index of the draft, its row in `tested`)
    whole: list[int] = []  # drafts that are accepted whole and have a row after them
    first_test = 0
    for index, draft in enumerate(drafts):
        num_tests = _num_tests(draft)
        text, is_rejected = _accepted(draft, token_probs[first_test : first_test + num_tests])
        texts.append(text)
        if is_rejected:
            rejected.append((index, first_test + len(text)))
        elif len(text) < draft.num_rows and not (text and text[-1] in draft.eos_ids):
            whole.append(index)
        first_test += num_tests
    _add_recovered(drafts, texts, rejected, probs)
    _add_bonus(drafts, texts, whole, scores)
    return texts


def target_probs(
    scores: Tensor,  # [R, V] float32 from `process_logits`, temperature above 0
    token_ids: Sequence[int],  # [T] one for each of the first rows; T <= R
) -> list[float]:
    """Return the target's probability of a token in each row, as `verify_by_rejection` takes it."""
    return _TargetProbs(scores, list(range(len(token_ids)))).of(list(token_ids))


def noise_of_test(verified: VerifiedDraft, place: int) -> float:
    """Return the draw that `verify_by_rejection` compares with p / q at a place of a draft."""
    return uniform(verified.seed, verified.position + place, DOMAIN_TEST)


def _num_tests(verified: VerifiedDraft) -> int:
    return min(verified.num_rows, len(verified.draft))


def _accepted(verified: VerifiedDraft, token_probs: Sequence[float]) -> tuple[list[int], bool]:
    """Return the accepted draft tokens, up to an eos, and whether the next one is rejected."""
    for i, target_prob in enumerate(token_probs):
        token = verified.draft[i]
        noise = noise_of_test(verified, i)
        if not _is_accepted(target_prob, verified.draft_rows[i].prob_of(token), noise):
            return list(verified.draft[:i]), True
        if token in verified.eos_ids:
            return list(verified.draft[: i + 1]), False
    return list(verified.draft[: len(token_probs)]), False


def _is_accepted(target_prob: float, draft_prob: float, noise: float) -> bool:
    """True with probability min(1, target / draft) over noise uniform in (0, 1)."""
    return noise * draft_prob < target_prob


class _TargetProbs:
    """Softmax of some rows; totals are sums of integers, so they do not depend on the batch."""

    def __init__(self, scores: Tensor, rows: list[int]) -> None:
        chosen = scores[to_device(rows, scores.device, torch.int64)]
        top = chosen.amax(dim=1, keepdim=True)
        top.masked_fill_(top == -torch.inf, 0.0)  # nothing is allowed: all weights are 0
        self._weights = chosen.sub_(top).exp_().mul_(WEIGHT_ONE)  # [T, V]
        totals = self._weights.to(torch.int64).sum(dim=1, keepdim=True)
        self._totals = totals.clamp_(min=1).double()

    def of(self, token_ids: list[int]) -> list[float]:
        """Return the probability of one token in each row."""
        ids = to_device(token_ids, self._weights.device, torch.int64)[:, None]
        return fetch((self._weights.gather(1, ids).double() / self._totals)[:, 0])

    def rows(self, rows: list[int]) -> Tensor:
        """Whole rows, float64 [len(rows), V]."""
        index = to_device(rows, self._weights.device, torch.int64)
        return self._weights[index].double() / self._totals[index]


def _add_recovered(
    drafts: Sequence[VerifiedDraft],
    texts: list[list[int]],
    rejected: list[tuple[int, int]],
    probs: _TargetProbs,
) -> None:
    """Append to each text after a rejection a sample of the positive part of target - draft."""
    if not rejected:
        return
    residual = _residual(
        probs.rows([row for _, row in rejected]),
        [drafts[index].draft_rows[len(texts[index])] for index, _ in rejected],
    )
    tokens = _draw(
        residual.to(torch.float32).log_(),
        [drafts[index].seed for index, _ in rejected],
        [drafts[index].position + len(texts[index]) for index, _ in rejected],
        DOMAIN_RESIDUAL,
    )
    for (index, _), token in zip(rejected, tokens, strict=True):
        texts[index].append(token)


def _residual(target_probs: Tensor, draft_rows: Sequence[DraftRow]) -> Tensor:
    """(target - draft)+ in each row, not normalised, float64 [R, V]; target where that is 0."""
    vocab_size, device = target_probs.shape[1], target_probs.device
    ids = [row.token_ids.astype(np.int64) for row in draft_rows]
    places = np.concatenate([number * vocab_size + found for number, found in enumerate(ids)])
    draft_probs = np.concatenate([row.probs.astype(np.float64) for row in draft_rows])
    residual = target_probs.clone()
    residual.view(-1).index_add_(
        0, array_to_device(places, device), array_to_device(draft_probs, device), alpha=-1
    )
    residual.clamp_(min=0)
    is_empty = residual.amax(dim=1, keepdim=True) <= 0
    return torch.where(is_empty, target_probs, residual)


def _add_bonus(
    drafts: Sequence[VerifiedDraft], texts: list[list[int]], whole: list[int], scores: Tensor
) -> None:
    """Append the target's own sample to each text whose draft is accepted whole."""
    if not whole:
        return
    rows = [drafts[index].first_row + len(texts[index]) for index in whole]
    tokens = _draw(
        scores[to_device(rows, scores.device)],
        [drafts[index].seed for index in whole],
        [drafts[index].position + len(texts[index]) for index in whole],
        DOMAIN_TOKEN,
    )
    for index, token in zip(whole, tokens, strict=True):
        texts[index].append(token)


def _draw(
    scores: Tensor,  # [R, V] log weights
    seeds: Sequence[int],
    positions: Sequence[int],
    domain: int,
) -> list[int]:
    noise = gumbel_noise(seeds, positions, scores.shape[1], scores.device, domain)
    return fetch(noise.add_(scores).argmax(dim=1))
