"""Token counts along a log that grows and is rolled back, and the penalties made of them."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from models.kv.block_pool import BlockPool
from models.protocol.messages import Open, Sampling
from models.sampling.logits import process_logits
from models.sampling.penalties import (
    RowCounts,
    TokenHistory,
    counts_on,
    has_penalties,
    scattered,
)
from models.scheduler.sessions import Session, SessionTable

VOCAB_SIZE = 12
PROMPT_LEN = 5


def counted(ids: Sequence[int]) -> RowCounts:
    """Counts of a whole text, from scratch."""
    generated = np.bincount(np.array(ids[PROMPT_LEN:], dtype=int), minlength=VOCAB_SIZE)
    return RowCounts(generated, np.bincount(ids[:PROMPT_LEN], minlength=VOCAB_SIZE))


def assert_counts(row: RowCounts, ids: Sequence[int]) -> None:
    expected = counted(ids)
    assert row.generated.tolist() == expected.generated.tolist()
    assert row.prompt.tolist() == expected.prompt.tolist()


def open_session() -> Session:
    table = SessionTable(1, BlockPool(8, 16).new_table)
    opened = Open(session_id="s", epoch=1, sampling=Sampling(), eos_ids=[], prompt_len=PROMPT_LEN)
    session = table.open(opened, 0.0)
    assert session is not None
    session.history = TokenHistory(VOCAB_SIZE, PROMPT_LEN)
    return session


@pytest.mark.parametrize("seed", range(20))
def test_counts_follow_the_log_forwards_and_back(seed: int) -> None:
    generator = random.Random(seed)
    session = open_session()
    for _ in range(60):
        if generator.random() < 0.5:
            session.append(generator.randrange(VOCAB_SIZE))
        else:  # a message: some of the log stays, some is written again, some is new
            base_len = generator.randrange(len(session.tokens) + 1)
            same = session.tokens.ids[base_len : base_len + generator.randrange(4)]
            new = [generator.randrange(VOCAB_SIZE) for _ in range(generator.randrange(8))]
            session.rewrite(base_len, same + new)
        ids = session.tokens.ids
        assert session.history is not None
        num_rows = generator.randrange(1, min(len(ids), 6) + 1) if ids else 1
        start = len(ids) - num_rows + 1 if ids else 0
        rows = session.history.rows(start, ids[start:], num_rows)
        for i, row in enumerate(rows):
            assert_counts(row, ids[: start + i])


def test_fewer_rows_than_tokens_behind_them() -> None:
    ids = [1, 2, 3, 4, 5, 6, 6, 7]
    history = TokenHistory(VOCAB_SIZE, PROMPT_LEN, ids)
    for i, row in enumerate(history.rows(5, ids[5:], 2)):
        assert_counts(row, ids[: 5 + i])


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(presence_penalty=0.1),
        Sampling(frequency_penalty=-0.1),
        Sampling(repetition_penalty=1.1),
    ],
)
def test_has_penalties(sampling: Sampling) -> None:
    assert has_penalties(sampling)
    assert not has_penalties(Sampling(temperature=0.3, min_p=0.1, top_k=4))


PENALTIES = Sampling(
    presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=2.0, temperature=0.5
)


def test_penalties_by_hand() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.0, 3.0, -1.0, 0.5, 4.0, 1.0, 1.0, 1.0, 1.0]])
    history = TokenHistory(VOCAB_SIZE, PROMPT_LEN, [0, 1, 0, 8, 8, 4, 4, 5, 0])
    row = history.rows(9, [], 1)
    scores = process_logits(logits, [PENALTIES], [None], row)[0] * 0.5
    expected = logits[0].clone()
    expected[0] = 2.0 / 2 - 0.25 - 0.5  # in the prompt and once behind it
    expected[1] = -2.0 * 2  # in the prompt
    expected[4] = 3.0 / 2 - 0.5 - 0.5  # twice generated
    expected[5] = -1.0 * 2 - 0.25 - 0.5
    expected[8] = 1.0 / 2
    torch.testing.assert_close(scores, expected)


def test_penalties_hold_at_temperature_0_too() -> None:
    logits = torch.tensor([[2.0, 1.9] + [0.0] * 10])
    history = TokenHistory(VOCAB_SIZE, 0, [0])
    sampling = Sampling(temperature=0, presence_penalty=0.2)
    scores = process_logits(logits, [sampling], [None], history.rows(1, [], 1))
    assert scores.argmax().item() == 1


def test_a_masked_token_stays_forbidden() -> None:
    logits = torch.ones(1, VOCAB_SIZE)
    history = TokenHistory(VOCAB_SIZE, 0, [0, 1, 1])
    sampling = Sampling(frequency_penalty=-2.0, repetition_penalty=0.5)
    mask = (0b0110).to_bytes(4, "little")
    scores = process_logits(logits, [sampling], [mask], history.rows(3, [], 1))[0]
    assert scores.isfinite().nonzero()[:, 0].tolist() == [1, 2]


def test_counts_that_are_sent_by_place_are_the_same():
    """As to a GPU: a few numbers for each row, rows of none among them."""
    generator = np.random.default_rng(0)
    rows = [
        generator.choice([0, 0, 0, 0, 1, 2, 70_000], VOCAB_SIZE).astype(np.int32) for _ in range(6)
    ]
    rows[2][:] = 0
    cpu = torch.device("cpu")
    assert torch.equal(scattered(rows, cpu), counts_on(rows, cpu))
    nothing = scattered([rows[2]], cpu)
    assert (nothing.shape, int(nothing.sum())) == ((1, VOCAB_SIZE), 0)


def test_counts_of_another_text_leave_those_of_this_one() -> None:
    """Rows of a side path of a draft see its tokens in place of the draft's."""
    history = TokenHistory(8, 2, [1, 2, 3, 4, 4])
    side = history.side_rows(3, [4, 4], [5, 3, 5], 2)
    other = TokenHistory(8, 2, [1, 2, 3, 5, 3, 5])
    for found, expected in zip(side, other.rows(5, [5], 2), strict=True):
        assert found.generated.tolist() == expected.generated.tolist()
        assert found.prompt.tolist() == expected.prompt.tolist()
    [now] = history.rows(5, [], 1)
    assert now.generated.tolist() == [0, 0, 0, 1, 2, 0, 0, 0]
