"""Computes the target's probabilities for the steps of choices, and draws a choice.

Scores are those of every other sampled token (`process_logits`) at temperature 1 without
truncation. So logit bias and penalties count. The choices are then one row of a vocabulary of their
own. temperature, min-p, top-k and top-p act on it by the same function. The draw from it has Gumbel
noise of a domain of its own. A row's scores are a function of the row, and sums are exact. So a
seed gives one choice for any batching of passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from models.device import fetch, to_device
from models.engine.choices.tree import ChoiceTree, Step
from models.engine.logprobs import token_logprobs
from models.protocol.messages import Sampling, TokenLogprobs
from models.sampling.logits import process_logits
from models.sampling.noise import DOMAIN_CHOICE, gumbel_noise
from models.sampling.penalties import RowCounts, TokenHistory
from models.scheduler.sessions import Session

_ROWS_AT_ONCE = 64  # rows whose log-softmax is in memory together


class Line(NamedTuple):
    """Rows of some nodes, each the child of the one before."""

    nodes: Sequence[int]  # [R]
    tokens: Sequence[int]  # the choice's up to the last node, its own included
    logits: Tensor  # float32 [R, V], not changed


class StepScores:
    """Fills a tree with what the rows of its nodes say.

    Args:
        tree: of the choices.
        session: whose tokens they follow.
        vocab_size: ids that may be sampled.
    """

    def __init__(self, tree: ChoiceTree, session: Session, vocab_size: int) -> None:
        self._tree = tree
        self._session = session
        self._end_ids = [i for i in dict.fromkeys(session.opened.eos_ids) if 0 <= i < vocab_size]
        self._sampling = msgspec.structs.replace(
            session.opened.sampling, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0
        )
        self._entries: dict[Step, TokenLogprobs] = {}
        self._end_tokens: dict[int, int] = {}  # by node: the likeliest
        self._lines: list[Line] = []  # not looked at yet, of at most `_ROWS_AT_ONCE` rows each

    def add(self, line: Line) -> None:
        """Take some rows, whose logits stay what they are until `flush`."""
        num_left = len(line.nodes)
        for first in range(0, len(line.nodes), _ROWS_AT_ONCE):
            part = slice(first, first + _ROWS_AT_ONCE)
            num_left -= len(line.nodes[part])
            tokens = line.tokens[: len(line.tokens) - num_left]
            self._lines.append(Line(line.nodes[part], tokens, line.logits[part]))

    def flush(self) -> None:
        """Look at all rows that were added."""
        lines, self._lines = self._lines, []
        batch: list[Line] = []
        for line in lines:
            if sum(len(one.nodes) for one in batch) + len(line.nodes) > _ROWS_AT_ONCE:
                self._note(batch)
                batch = []
            batch.append(line)
        if batch:
            self._note(batch)

    def end_token(self, choice: int) -> int:
        """Return the likeliest id that ends the text behind a choice."""
        return self._end_tokens[self._tree.path(choice)[-1].node]

    def entries(self, choice: int) -> list[TokenLogprobs]:
        """Return the logprobs of a choice's tokens and its end, if they are requested."""
        return [self._entries[step] for step in self._tree.path(choice)] if self._entries else []

    @torch.inference_mode()
    def _note(self, lines: Sequence[Line]) -> None:
        nodes = [node for line in lines for node in line.nodes]
        counts = [row for line in lines for row in self._counts(line.tokens, len(line.nodes))]
        self._note_rows(nodes, torch.cat([line.logits for line in lines]), counts)

    def _counts(self, tokens: Sequence[int], num_rows: int) -> Sequence[RowCounts]:
        """Return the counts that each row's penalties see; none if there are no penalties."""
        history: TokenHistory | None = self._session.history
        if history is None:
            return ()
        return history.side_rows(len(self._session.tokens), (), tokens, num_rows)

    def _note_rows(self, nodes: Sequence[int], logits: Tensor, counts: Sequence[RowCounts]) -> None:
        scores = process_logits(logits, [self._sampling] * len(nodes), [None] * len(nodes), counts)
        logprobs = torch.log_softmax(scores, dim=1)
        asked = [(row, step) for row, node in enumerate(nodes) for step in self._tree.steps(node)]
        following = [(row, step, step.token) for row, step in asked if step.token is not None]
        values = _at(logprobs, [row for row, _, _ in following], [t for _, _, t in following])
        for (_, step, _), value in zip(following, values, strict=True):
            self._tree.note(step, value)
        ends = [(row, step) for row, step in asked if step.token is None]
        if ends:
            rows = to_device([row for row, _ in ends], logits.device)
            of_ends = logprobs[rows][:, to_device(self._end_ids, logits.device)].double()
            likeliest = fetch(of_ends.argmax(dim=1))
            for (_, step), best, value in zip(
                ends, likeliest, fetch(of_ends.logsumexp(dim=1)), strict=True
            ):
                self._tree.note(step, value)
                self._end_tokens[step.node] = self._end_ids[best]
        self._note_entries(asked, logits)

    def _note_entries(self, asked: Sequence[tuple[int, Step]], logits: Tensor) -> None:
        num_top = self._session.opened.sampling.num_logprobs
        if num_top < 0:
            return
        tokens = [
            self._end_tokens[step.node] if step.token is None else step.token for _, step in asked
        ]
        rows = logits[to_device([row for row, _ in asked], logits.device)]
        entries = token_logprobs(rows, tokens, num_top)
        self._entries |= {step: entry for (_, step), entry in zip(asked, entries, strict=True)}


@torch.inference_mode()
def draw_choice(logprobs: Sequence[float], sampling: Sampling, position: int) -> int:
    """Draw a choice by its place in the list; the first if several tie. Safe to repeat.

    Args:
        logprobs: of the choices, not normalised; the highest is finite.
        sampling: temperature, min-p, top-k and top-p are of the choices.
        position: absolute index of the first token after the prefix.
    """
    highest = max(logprobs)  # float32 keeps seven digits of what matters: the differences
    row = torch.tensor([[logprob - highest for logprob in logprobs]], dtype=torch.float32)
    terms = Sampling(
        temperature=sampling.temperature,
        min_p=sampling.min_p,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
    )
    scores = process_logits(row, [terms], [None])
    if sampling.temperature > 0:
        scores = scores + gumbel_noise(
            [sampling.seed], [position], len(logprobs), domain=DOMAIN_CHOICE
        )
    return int(scores.argmax())


def _at(values: Tensor, rows: list[int], columns: list[int]) -> list[float]:
    """Return some values of [R, V]."""
    if not rows:
        return []
    return fetch(values[to_device(rows, values.device), to_device(columns, values.device)])
