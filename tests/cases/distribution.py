"""What the distribution tests sample, and its exact distribution by a second implementation.

The reference shares no code with the engines: logits by `transformers`, the processing of a row
in numpy as one would write it down from the definitions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from transformers import LlamaForCausalLM

from models.protocol.messages import Sampling

VOCAB_SIZE = 16
EOS_ID = VOCAB_SIZE - 1
NUM_TOKENS = (
    3  # generated ones whose joint distribution is looked at; an eos fills the rest with itself
)
_MIN_EXPECTED = 5.0  # of a cell of a chi-square test

# One token, two, and three: any token may be the one that completes a word.
BAD_WORDS = (
    (5,),
    *((token, (3 * token + 1) % VOCAB_SIZE) for token in range(VOCAB_SIZE)),
    *((token, (3 * token + 2) % VOCAB_SIZE, 9) for token in range(0, VOCAB_SIZE, 2)),
)

Distribution = dict[tuple[int, ...], float]


@dataclass(frozen=True)
class Case:
    """One way to sample. `certain`: drafts are looked up, not drawn."""

    sampling: Sampling
    is_masked: bool = False
    is_draft_masked: bool = True
    is_certain: bool = False
    num_pairs: int = 64
    prompt: tuple[int, ...] = (1, 2, 3, 2)


CASES = {
    "plain": Case(Sampling()),
    "cold": Case(Sampling(temperature=0.6)),
    "top-p": Case(Sampling(top_p=0.8)),
    "min-p": Case(Sampling(min_p=0.15)),
    "top-k": Case(Sampling(temperature=1.5, top_k=6)),
    "penalties": Case(
        Sampling(presence_penalty=1.5, frequency_penalty=0.8, repetition_penalty=1.4)
    ),
    "logit-bias": Case(Sampling(logit_bias=((3, 1.5), (8, -1.0), (6, -100.0), (EOS_ID, 1.0)))),
    "min-tokens": Case(Sampling(min_tokens=2, logit_bias=((EOS_ID, 2.0),))),
    "bad-words": Case(Sampling(bad_words=BAD_WORDS)),
    "mask": Case(Sampling(), is_masked=True),
    "mask-on-target-only": Case(Sampling(), is_masked=True, is_draft_masked=False),
    "truncated-draft": Case(Sampling(), num_pairs=4),
    "certain-draft": Case(Sampling(), is_certain=True),
    "all": Case(
        Sampling(
            temperature=1.3,
            top_p=0.9,
            top_k=9,
            min_p=0.03,
            presence_penalty=-0.3,
            frequency_penalty=0.9,
            repetition_penalty=1.2,
            logit_bias=((3, 0.7), (EOS_ID, 0.9)),
            min_tokens=1,
            bad_words=BAD_WORDS[:4],
        ),
        is_masked=True,
        num_pairs=5,
    ),
}


def allowed_after(generated: Sequence[int]) -> set[int]:
    """The grammar of masked cases: about two thirds of the tokens, by the last two."""
    state = sum(generated[-2:]) + len(generated)
    return {token for token in range(VOCAB_SIZE) if (token + state) % 3}


def certain_draft(ids: Sequence[int], k: int) -> list[int]:
    """A draft that nobody drew: some function of the text."""
    return [(5 * ids[-1] + 7 * i + len(ids)) % VOCAB_SIZE for i in range(k)]


def reference_probs(logits: np.ndarray, case: Case, generated: Sequence[int]) -> np.ndarray:
    """Probabilities of the next token after the prompt and `generated`, float64 [V]."""
    sampling = case.sampling
    scores = logits.astype(np.float64)
    if case.is_masked:
        allowed = allowed_after(generated)
        scores[[token for token in range(VOCAB_SIZE) if token not in allowed]] = -np.inf
    for *before, last in sampling.bad_words:
        if list(generated[len(generated) - len(before) :]) == before:
            scores[last] = -np.inf
    if len(generated) < sampling.min_tokens:
        scores[EOS_ID] = -np.inf
    for token, bias in sampling.logit_bias:
        scores[token] += bias
    for token in {*case.prompt, *generated}:
        factor = sampling.repetition_penalty
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    for token in set(generated):
        count = list(generated).count(token)
        scores[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    probs = _softmax(scores / sampling.temperature)
    probs[probs < sampling.min_p * probs.max()] = 0
    if sampling.top_k:
        probs[probs < np.sort(probs)[-sampling.top_k]] = 0
    if sampling.top_p < 1:
        probs /= probs.sum()
        order = np.argsort(-probs)
        before = np.cumsum(probs[order]) - probs[order]
        probs[order[before >= sampling.top_p]] = 0
    return probs / probs.sum()


def truncated(probs: np.ndarray, num_pairs: int) -> np.ndarray:
    """The distribution a draft of `num_pairs` pairs is drawn from."""
    kept = np.where(probs >= np.sort(probs)[-min(num_pairs, len(probs))], probs, 0)
    return kept / kept.sum()


@cache
def reference_logits(path: Path, prompt: tuple[int, ...]) -> dict[tuple[int, ...], np.ndarray]:
    """Logits after the prompt and every generated text of up to NUM_TOKENS - 1 tokens."""
    model = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32)
    texts = list(itertools.product(range(VOCAB_SIZE), repeat=NUM_TOKENS - 1))
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *text] for text in texts])).logits.numpy()
    return {
        text[:length]: row[len(prompt) - 1 + length]
        for text, row in zip(texts, logits, strict=True)
        for length in range(NUM_TOKENS)
    }


def exact_distribution(path: Path, case: Case) -> Distribution:
    """The probability of every text of NUM_TOKENS tokens."""
    logits = reference_logits(path, case.prompt)
    distribution: Distribution = {(): 1.0}
    for _ in range(NUM_TOKENS):
        longer: Distribution = {}
        for text, prob in distribution.items():
            if text and text[-1] == EOS_ID:
                longer[(*text, EOS_ID)] = prob
                continue
            for token, step in enumerate(reference_probs(logits[text], case, text)):
                if step > 0:
                    longer[(*text, token)] = prob * float(step)
        distribution = longer
    return distribution


def first_probs(target: Path, draft: Path, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The two models' distributions of the first token."""
    draft_case = replace(case, is_masked=case.is_masked and case.is_draft_masked)
    return (
        reference_probs(reference_logits(target, case.prompt)[()], case, ()),
        reference_probs(reference_logits(draft, case.prompt)[()], draft_case, ()),
    )


def rejection_acceptance(target: np.ndarray, draft: np.ndarray) -> float:
    return float(np.minimum(target, draft).sum())


def coupled_acceptance(target: np.ndarray, draft: np.ndarray) -> float:
    """P(both draw x), summed over x: a race of exponential clocks with common noise."""
    both = np.flatnonzero((target > 0) & (draft > 0))
    return float(sum(1 / np.maximum(target / target[x], draft / draft[x]).sum() for x in both))


def p_value(texts: Sequence[tuple[int, ...]], distribution: Distribution) -> float:
    """Of the joint distributions of the first 1, 2 and 3 tokens: three times the least p-value.

    The short ones see a shift of one token better, the long ones a shift between tokens.
    """
    p_values = []
    for length in range(1, NUM_TOKENS + 1):
        begun: Distribution = {}
        for text, prob in distribution.items():
            begun[text[:length]] = begun.get(text[:length], 0.0) + prob
        p_values.append(_chi_square([text[:length] for text in texts], begun))
    return min(1.0, NUM_TOKENS * min(p_values))


def _chi_square(texts: Sequence[tuple[int, ...]], distribution: Distribution) -> float:
    """P-value of the distribution; 0 where a text came that the distribution forbids.

    Rare texts share a cell with those of the same beginning, so that a shift of a first token
    stays visible.
    """
    if any(text not in distribution for text in texts):
        return 0.0
    cell_of = {text: text for text in distribution}
    expected = {text: prob * len(texts) for text, prob in distribution.items()}
    for length in reversed(range(NUM_TOKENS)):
        merged: dict[tuple[int, ...], float] = {}
        parent_of = {}
        for cell, count in expected.items():
            is_rare = count < _MIN_EXPECTED and len(cell) > length
            parent_of[cell] = cell[:length] if is_rare else cell
            merged[parent_of[cell]] = merged.get(parent_of[cell], 0.0) + count
        cell_of = {text: parent_of[cell] for text, cell in cell_of.items()}
        expected = merged
    if 0 < expected.get((), 0.0) < _MIN_EXPECTED:  # what is rare even among first tokens
        largest = max(expected, key=lambda cell: expected[cell])
        expected[largest] += expected.pop(())
        cell_of = {text: cell if cell else largest for text, cell in cell_of.items()}
    observed = dict.fromkeys(expected, 0)
    for text in texts:
        observed[cell_of[text]] += 1
    return float(stats.chisquare(list(observed.values()), list(expected.values())).pvalue)


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()
