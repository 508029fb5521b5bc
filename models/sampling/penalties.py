"""Presence, frequency and repetition penalties, and the token counts they need.

A `TokenHistory` follows the tokens of one session token by token, forwards and back. So a long text
is never counted again. Rows of a verify see the draft tokens before them. Their counts are those of
all tokens less those after the row. Sessions without penalties have no history. Counts and their
use as in vLLM; the repetition penalty is CTRL's (arXiv 1909.05858).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.device import array_to_device, to_device
from models.protocol.messages import Sampling


class RowCounts(NamedTuple):
    """The counts of each token before the one that is sampled from a row."""

    generated: np.ndarray  # [V] int32
    prompt: np.ndarray  # [V] int32


def has_penalties(sampling: Sampling) -> bool:
    """Return whether its scores depend on the tokens so far."""
    return (
        sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
        or sampling.repetition_penalty != 1
    )


class TokenHistory:
    """Counts of the tokens of one session; positions from `prompt_len` on are generated ones."""

    def __init__(self, vocab_size: int, prompt_len: int, ids: Sequence[int] = ()) -> None:
        self._prompt_len = prompt_len
        self._prompt = np.zeros(vocab_size, dtype=np.int32)
        self._generated = np.zeros(vocab_size, dtype=np.int32)
        self.add(0, ids)

    def add(self, start: int, ids: Sequence[int]) -> None:
        """Add `ids`, all within the vocabulary, to the tokens from length `start` on."""
        self._count(start, ids, 1)

    def remove(self, start: int, ids: Sequence[int]) -> None:
        """Remove `ids`: the tokens were cut to length `start`, and these came after it."""
        self._count(start, ids, -1)

    def rows(self, start: int, ids: Sequence[int], num_rows: int) -> list[RowCounts]:
        """Counts at the lengths start, start + 1, ...; they end with `ids` after `start`."""
        generated = np.repeat(self._generated[None], num_rows, axis=0)
        prompt = np.broadcast_to(self._prompt.copy(), generated.shape)
        for index, token_id in enumerate(ids):
            if start + index >= self._prompt_len:
                generated[: index + 1, token_id] -= 1
            else:  # a row within the prompt, which no sender asks for but the header rules allow
                prompt = np.array(prompt)
                prompt[: index + 1, token_id] -= 1
        return [RowCounts(*row) for row in zip(generated, prompt, strict=True)]

    def side_rows(
        self, start: int, ids: Sequence[int], path: Sequence[int], num_rows: int
    ) -> list[RowCounts]:
        """Counts at the last lengths of another text, which has `path` in place of these `ids`."""
        self.remove(start, ids)
        self.add(start, path)
        num_before = len(path) - num_rows + 1
        rows = self.rows(start + num_before, path[num_before:], num_rows)
        self.remove(start, path)
        self.add(start, ids)
        return rows

    def _count(self, start: int, ids: Sequence[int], step: int) -> None:
        num_prompt = max(self._prompt_len - start, 0)
        for counts, part in (
            (self._prompt, ids[:num_prompt]),
            (self._generated, ids[num_prompt:]),
        ):
            if len(part) == 1:
                counts[part[0]] += step
            elif part:
                np.add.at(counts, part, step)


def penalise(
    scores: Tensor,  # [R, V] float32, not changed
    samplings: Sequence[Sampling],  # [R]
    counts: Sequence[RowCounts],  # [R]
) -> Tensor:
    """Return the scores less their penalties: repetition, then frequency, then presence."""
    num_ids = scores.shape[1]  # more are counted where the model may read ids it does not sample
    generated = counts_on([row.generated[:num_ids] for row in counts], scores.device)
    if any(sampling.repetition_penalty != 1 for sampling in samplings):
        prompt = counts_on([row.prompt[:num_ids] for row in counts], scores.device)
        factors = _column([s.repetition_penalty for s in samplings], scores.device)
        factors = torch.where((generated > 0) | (prompt > 0), factors, 1.0)
        scores = torch.where(scores > 0, scores / factors, scores * factors)
    if any(sampling.frequency_penalty != 0 for sampling in samplings):
        frequency = _column([s.frequency_penalty for s in samplings], scores.device)
        scores = scores - frequency * generated
    if any(sampling.presence_penalty != 0 for sampling in samplings):
        presence = _column([s.presence_penalty for s in samplings], scores.device)
        scores = scores - presence * (generated > 0)
    return scores


def counts_on(rows: list[np.ndarray], device: torch.device) -> Tensor:
    """Counts [R, V] int32 on the device; a GPU gets those that are not 0, and where they are.

    All of them are 98 MB for 192 rows of 128,000 ids; a text has some hundred different ones.
    """
    if device.type == "cpu":
        return array_to_device(np.stack(rows), device)
    return scattered(rows, device)


def scattered(rows: list[np.ndarray], device: torch.device) -> Tensor:
    """Upload the counts as a few numbers, on any device."""
    num_ids = len(rows[0])
    ids = [np.flatnonzero(row) for row in rows]
    places = np.concatenate([number * num_ids + found for number, found in enumerate(ids)])
    values = np.concatenate([row[found] for row, found in zip(rows, ids, strict=True)])
    counts = torch.zeros(len(rows) * num_ids, dtype=torch.int32, device=device)
    counts.index_copy_(
        0,
        array_to_device(places.astype(np.int64), device),
        array_to_device(values.astype(np.int32), device),
    )
    return counts.view(len(rows), num_ids)


def _column(values: list[float], device: torch.device) -> Tensor:
    return to_device(values, device, torch.float32)[:, None]
