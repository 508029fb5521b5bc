"""The rejection rule, case by case, with hand-made distributions."""

import numpy as np
import pytest
import torch
from scipy import stats

from models.protocol.messages import Sampling
from models.sampling import verification
from models.sampling.draft_probs import DraftRow, certain_row
from models.sampling.verification import VerifiedDraft, draw_ids, verify_by_rejection

EOS = 7
VOCAB_SIZE = 8


def row_of(probs: dict[int, float]) -> DraftRow:
    return DraftRow(
        np.array(list(probs), dtype=np.int32), np.array(list(probs.values()), dtype=np.float32)
    )


def scores_of(*rows: dict[int, float]) -> torch.Tensor:
    """Log probabilities; a token not named is forbidden."""
    scores = torch.full((len(rows), VOCAB_SIZE), -torch.inf)
    for i, probs in enumerate(rows):
        for token, prob in probs.items():
            scores[i, token] = np.log(prob) + 3.0  # scores are not normalised
    return scores


def judged(
    draft: list[int], rows: list[DraftRow], num_rows: int, seed: int = 1, first_row: int = 0
) -> VerifiedDraft:
    return VerifiedDraft(
        first_row=first_row,
        num_rows=num_rows,
        draft=draft,
        draft_rows=rows,
        position=10 + first_row,
        seed=seed,
        eos_ids=[EOS],
    )


def judge_one(scores: torch.Tensor, draft: VerifiedDraft) -> list[int]:
    (text,) = verify_by_rejection(scores, [draft])
    return text


SURE = {1: 1.0}
LIKELY = row_of({1: 0.6, 2: 0.4})


def test_a_token_at_least_as_likely_for_the_target_stands() -> None:
    scores = scores_of({1: 0.6, 2: 0.4}, {1: 0.7, 3: 0.3}, {4: 1.0})
    for seed in range(50):
        assert judge_one(scores, judged([1, 1], [LIKELY, LIKELY], 3, seed)) == [1, 1, 4]


def test_what_the_target_forbids_falls_and_is_replaced() -> None:
    scores = scores_of({1: 1.0}, {2: 0.5, 3: 0.5}, {1: 1.0})
    texts = [judge_one(scores, judged([1, 1], [LIKELY, LIKELY], 3, s)) for s in range(200)]
    assert all(text[0] == 1 and len(text) == 2 for text in texts)
    # Target - draft is 0.1 for token 2 and 0.5 for token 3.
    share = sum(text[1] == 3 for text in texts) / len(texts)
    assert abs(share - 5 / 6) < 4 * np.sqrt(5 / 36 / len(texts))


@pytest.mark.parametrize("eos_at", [0, 1, 2])
def test_an_eos_that_stands_ends_the_text(eos_at: int) -> None:
    draft = [1, 1, 1]
    draft[eos_at] = EOS
    scores = scores_of(*({token: 1.0} for token in draft), SURE)
    text = judge_one(scores, judged(draft, [certain_row(t) for t in draft], 4))
    assert text == draft[: eos_at + 1]


def test_a_draft_token_in_the_last_row_is_judged_and_nothing_follows_it() -> None:
    """Rows may be missing where masks are: the last row then has a draft token to judge."""
    scores = scores_of(SURE, {2: 1.0})
    assert judge_one(scores, judged([1, 2, 3], [certain_row(t) for t in (1, 2, 3)], 2)) == [1, 2]
    assert judge_one(scores, judged([1, 3, 3], [certain_row(t) for t in (1, 3, 3)], 2)) == [1, 2]


def test_a_certain_token_stands_with_the_targets_probability() -> None:
    scores = scores_of({1: 0.3, 2: 0.5, 3: 0.2}, SURE)
    texts = [judge_one(scores, judged([1], [certain_row(1)], 2, seed)) for seed in range(3000)]
    counts = np.bincount([text[0] for text in texts], minlength=4)[1:]
    assert stats.chisquare(counts, np.array([0.3, 0.5, 0.2]) * len(texts)).pvalue > 1e-3
    assert all(len(text) == (2 if text[0] == 1 else 1) for text in texts)


def test_the_whole_draft_is_followed_by_the_draw_of_a_plain_row() -> None:
    scores = torch.cat([scores_of(SURE), torch.linspace(0, 1, VOCAB_SIZE)[None]])
    for seed in range(50):
        text = judge_one(scores, judged([1], [certain_row(1)], 2, seed))
        assert text == [1, *draw_ids(scores[1:], [Sampling(seed=seed)], [11]).tolist()]


def test_where_nothing_is_left_the_target_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rounding brings that about: a token falls whose draft distribution is the target's."""
    monkeypatch.setattr(verification, "_is_accepted", lambda p, q, noise: False)
    both = {2: 0.5, 5: 0.5}
    scores = scores_of(both, SURE)
    texts = [judge_one(scores, judged([2], [row_of(both)], 2, seed)) for seed in range(40)]
    assert {text[0] for text in texts} == {2, 5}
    assert all(len(text) == 1 for text in texts)


def test_a_row_of_nothing_gives_some_id() -> None:
    scores = torch.full((2, VOCAB_SIZE), -torch.inf)
    (token,) = judge_one(scores, judged([1], [LIKELY], 2))
    assert 0 <= token < VOCAB_SIZE


def test_tiny_probabilities_are_judged_by_their_ratio() -> None:
    scores = scores_of({1: 1e-9, 2: 1.0}, SURE)
    likely = row_of({1: 1e-10, 2: 1.0})
    assert judge_one(scores, judged([1], [likely], 2)) == [1, 1]


def test_an_id_may_repeat_in_a_row_with_probability_0() -> None:
    twice = DraftRow(np.array([1, 1], dtype=np.int32), np.array([1, 0], dtype=np.float32))
    scores = scores_of({1: 0.5, 2: 0.5}, SURE)
    for seed in range(40):
        expected = judge_one(scores, judged([1], [certain_row(1)], 2, seed))
        assert judge_one(scores, judged([1], [twice], 2, seed)) == expected


def test_a_judgement_does_not_depend_on_its_batch() -> None:
    generator = torch.Generator().manual_seed(5)
    drafts: list[VerifiedDraft] = []
    scores = 2 * torch.randn(40, VOCAB_SIZE, generator=generator)
    uniform_row = row_of(dict.fromkeys(range(VOCAB_SIZE), 1 / VOCAB_SIZE))
    first = 0
    for i, (k, num_rows) in enumerate([(4, 5), (1, 2), (3, 2), (2, 3), (4, 5), (3, 3)] * 2):
        tokens = [(3 * i + j) % VOCAB_SIZE for j in range(k)]
        drafts.append(judged(tokens, [uniform_row] * k, num_rows, seed=i, first_row=first))
        first += num_rows
    together = verify_by_rejection(scores[:first], drafts)
    assert len({len(text) for text in together}) > 1
    for draft, text in zip(drafts, together, strict=True):
        assert verify_by_rejection(scores[:first], [draft]) == [text]
