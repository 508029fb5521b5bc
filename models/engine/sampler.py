"""Samples and verifies for jobs of several sessions together: logits, masks, terms in one batch.

This is the step between a pass and what an engine makes of it. A constrained row without a mask is
never sampled from, and a token its mask forbids never leaves here. Each session is served by its
own rule; `draft_rows` is the draft engine's side of all rules, `verify_rows` the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from models.device import fetch, to_device
from models.protocol.messages import Sampling
from models.protocol.parts import DraftTest, Inspection
from models.sampling.draft_probs import draw_truncated
from models.sampling.draws import draw_from_logits, rank_with_margins
from models.sampling.logits import adjust_logits, is_allowed, shaped_scores
from models.sampling.penalties import RowCounts
from models.sampling.token_rules import forbidden_ids, has_rules
from models.sampling.verification import (
    RuleFunction,
    VerifiedDraft,
    accept_matching,
    needs_draft_probs,
    noise_of_test,
    rule_function,
    target_probs,
)
from models.scheduler.sessions import Job, Session


class _JobRows(NamedTuple):
    """Rows [first, first + num_rows) of the scores; the first samples token number `position`.

    Each follows the one before it. A draft that is a tree has several such parts.
    """

    session: Session
    job: Job
    first: int
    num_rows: int
    position: int
    side_path: list[int] | None  # tokens behind the session's first row with logits; None: its own

    @property
    def sampling(self) -> Sampling:
        """The terms of its session."""
        return self.session.opened.sampling


def is_drawable(job: Job) -> bool:
    """Return whether its logits and, if it is constrained, its masks are there."""
    return job.logits is not None and (job.mask is None or job.mask.rows is not None)


def num_drawable(job: Job) -> int:
    """Rows with logits and, if constrained, a mask."""
    if job.mask is None or job.mask.rows is None:
        return job.num_logits + job.num_side_rows
    return min(job.num_logits, len(job.mask.rows))


@torch.inference_mode()
def draft_rows(jobs: list[tuple[Session, Job]], whole: Tensor | None) -> list[list[int]]:
    """Sample a draft token in each row of each job; where its rule needs it, with its distribution.

    A job has one row, or one more than its guess has tokens: what follows the guess's first tokens.
    `whole` [R, V] are the logits of all rows in order, if they are in one tensor.
    """
    if not jobs:
        return []
    logits, parts = _adjusted(jobs, whole)
    truncated = [part for part in parts if needs_draft_probs(part.sampling)]
    whole_rows = [part for part in parts if not needs_draft_probs(part.sampling)]
    sampled = _draw_rows(logits, whole_rows)
    if truncated:
        tokens, rows = draw_truncated(
            shaped_scores(_select(logits, truncated), _samplings(truncated)),
            [part.sampling.seed for part in truncated for _ in range(part.num_rows)],
            [part.position + i for part in truncated for i in range(part.num_rows)],
        )
        for part in truncated:
            sampled[part.first], tokens = tokens[: part.num_rows], tokens[part.num_rows :]
            part.job.draft_rows += rows[: part.num_rows]
            del rows[: part.num_rows]
    return [sampled[part.first] for part in parts]


@torch.inference_mode()
def verify_rows(jobs: list[tuple[Session, Job]], whole: Tensor | None) -> list[list[int]]:
    """Return the target's tokens in each job's rows, up to k + 1, for `accept_matching`.

    A tree has one token for each row, for `accept_in_tree`. The tokens are otherwise the target's
    own samples. A rule with a function gives the accepted draft tokens and the token after them
    instead. `whole` [R, V] are the logits of all rows in order, if in one tensor.
    """
    if not jobs:
        return []
    logits, parts = _adjusted(jobs, whole)
    sampled: list[_JobRows] = []
    by_rule: dict[RuleFunction, list[_JobRows]] = {}
    for part in parts:
        function = rule_function(part.sampling) if part.job.draft else None
        (sampled if function is None else by_rule.setdefault(function, [])).append(part)
    tokens = _draw_rows(logits, sampled)
    scores = shaped_scores(logits, _samplings(parts)) if by_rule else logits
    for function, verified in by_rule.items():
        texts = function(scores, [_verified_draft(part) for part in verified])
        tokens |= {part.first: text for part, text in zip(verified, texts, strict=True)}
    joined: dict[int, list[int]] = {}
    for part in parts:
        joined.setdefault(id(part.job), []).extend(tokens[part.first])
    return [joined[id(job)] for _, job in jobs]


@torch.inference_mode()
def note_inspections(jobs: Sequence[tuple[Session, Job]], sampled: Sequence[Sequence[int]]) -> None:
    """Give each job whose sender wants to know what its rows said of its draft's first path.

    Its scores are computed once more, alone: what nobody asks for costs nothing.
    """
    for (session, job), said in zip(jobs, sampled, strict=True):
        if job.inspection is None:
            continue
        logits, (part, *_) = _adjusted([(session, job)], None)
        own, verified = said[: part.num_rows], _verified_draft(part)
        tests = _draft_tests(logits[: part.num_rows], part, own, verified)
        num_accepted = accept_matching(job.draft, own, verified.eos_ids).num_accepted
        allowed = _num_allowed(job)[: num_accepted + 1]
        job.inspection = Inspection(tests, [] if job.mask is None else allowed)


def _draft_tests(
    logits: Tensor, part: _JobRows, said: Sequence[int], verified: VerifiedDraft
) -> list[DraftTest]:
    draft = part.job.draft[: part.num_rows]
    if not draft:
        return []
    probs = [float(token == other) for token, other in zip(draft, said, strict=False)]
    probs += [0.0] * (len(draft) - len(probs))
    if part.sampling.temperature > 0:  # greedy: all of it is on one token
        probs = target_probs(shaped_scores(logits, [part.sampling] * len(logits)), draft)
    num_right = accept_matching(part.job.draft, said, verified.eos_ids).num_accepted
    num_allowed = _num_allowed(part.job)
    return [
        DraftTest(
            token,
            target_prob=probs[place],
            draft_prob=rows[place].prob_of(token) if (rows := verified.draft_rows) else None,
            noise=noise_of_test(verified, place) if verified.draft_rows else None,
            is_accepted=None if place > num_right else token == said[place],
            num_allowed=num_allowed[place] if num_allowed else None,
        )
        for place, token in enumerate(draft)
    ]


def _num_allowed(job: Job) -> list[int]:
    """Tokens that each row's mask allows; empty without a constraint."""
    rows = () if job.mask is None else job.mask.rows or ()
    return [int.from_bytes(row, "little").bit_count() for row in rows]


def legal_prefix(job: Job, tokens: list[int]) -> list[int]:
    """Return the tokens before the first one its mask forbids (a row may allow none at all)."""
    if job.mask is None or job.mask.rows is None:
        return tokens
    for i, (mask, token) in enumerate(zip(job.mask.rows, tokens, strict=False)):
        if not is_allowed(mask, token):
            return tokens[:i]
    return tokens


def _adjusted(
    jobs: list[tuple[Session, Job]], whole: Tensor | None
) -> tuple[Tensor, list[_JobRows]]:
    """Adjusted logits of all rows of all jobs, [R, V], and where each job's rows are."""
    parts: list[_JobRows] = []
    samplings: list[Sampling] = []
    masks: list[memoryview | None] = []
    counts: list[RowCounts | None] = []
    forbidden: list[Sequence[int]] = []
    logits: list[Tensor] = []
    for session, job in jobs:
        count = num_drawable(job)
        own = _parts(session, job, len(samplings), count)
        parts += own
        samplings += [session.opened.sampling] * count
        masks += [None] * count if job.mask is None else (job.mask.rows or [])[:count]
        for part in own:
            counts += _counts(part)
            forbidden += _forbidden(part)
        if whole is None and job.logits is not None:
            logits.append(job.logits[:count])
    rows = torch.cat(logits) if whole is None else whole
    return adjust_logits(rows, samplings, masks, counts, forbidden), parts


def _parts(session: Session, job: Job, first: int, count: int) -> list[_JobRows]:
    """Split the job's `count` rows of the scores, which are there from `first` on, by path."""
    position = len(session.tokens) - job.num_logits + 1
    if job.tree is None:
        return [_JobRows(session, job, first, count, position, None)]
    parts = [_JobRows(session, job, first, job.num_logits, position, None)]
    for segment in job.tree.segments[1:]:
        path = job.tree.path_tokens(segment[-1])
        start = position + len(path) - len(segment) + 1
        parts.append(_JobRows(session, job, first + segment.start, len(segment), start, path))
    return parts


def _counts(part: _JobRows) -> Sequence[RowCounts | None]:
    """Tokens before the one that each row samples, the draft's among them."""
    session, first, count = part.session, part.position, part.num_rows
    if session.history is None:
        return [None] * count
    if part.side_path is None:
        return session.history.rows(first, session.tokens.ids[first:], count)
    draft_start = len(session.tokens) - part.job.num_logits + 1
    draft = session.tokens.ids[draft_start:]
    return session.history.side_rows(draft_start, draft, part.side_path, count)


def _forbidden(part: _JobRows) -> list[Sequence[int]]:
    """Return the ids each row may not sample after the tokens before it, the draft's among them."""
    opened, position, count = part.session.opened, part.position, part.num_rows
    if not has_rules(opened.sampling):
        return [()] * count
    tokens = part.session.tokens.ids
    if part.side_path is not None:
        tokens = [*tokens[: len(tokens) - part.job.num_logits + 1], *part.side_path]
    generated = tokens[opened.prompt_len : position + count - 1]
    num_before = position - opened.prompt_len
    return [
        forbidden_ids(opened.sampling, opened.eos_ids, generated[: max(num_before + i, 0)])
        for i in range(count)
    ]


def _draw_rows(logits: Tensor, parts: list[_JobRows]) -> dict[int, list[int]]:
    """Sample in all rows of `parts`; return the tokens by each part's first row."""
    if not parts:
        return {}
    terms = (
        _select(logits, parts),
        _samplings(parts),
        [part.position + i for part in parts for i in range(part.num_rows)],
    )
    num_ranks = max(part.job.num_ranks for part in parts)
    if num_ranks > 1:
        ids, above = rank_with_margins(*terms, num_ranks)
        ranked, margins = fetch(ids), fetch(above)
    else:
        ranked = [[token] for token in fetch(draw_from_logits(*terms))]
        margins = []
    sampled: dict[int, list[int]] = {}
    start = 0
    for part in parts:
        own = ranked[start : start + part.num_rows]
        sampled[part.first] = [candidates[0] for candidates in own]
        if part.job.num_ranks > 1:
            part.job.candidates += own
            part.job.margins += margins[start : start + part.num_rows]
        start += part.num_rows
    return sampled


def _select(logits: Tensor, parts: list[_JobRows]) -> Tensor:
    """Return the rows of `parts`; `logits` itself if these are all."""
    rows = [row for part in parts for row in range(part.first, part.first + part.num_rows)]
    if len(rows) == len(logits):
        return logits
    return logits[to_device(rows, logits.device)]


def _samplings(parts: list[_JobRows]) -> list[Sampling]:
    """Return the terms of each row."""
    return [part.sampling for part in parts for _ in range(part.num_rows)]


def _verified_draft(part: _JobRows) -> VerifiedDraft:
    return VerifiedDraft(
        first_row=part.first,
        num_rows=part.num_rows,
        draft=part.job.draft,
        draft_rows=part.job.draft_rows,
        position=part.position,
        seed=part.sampling.seed,
        eos_ids=part.session.opened.eos_ids,
    )
