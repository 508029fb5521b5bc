"""States of a session's newest rows: what is kept, replaced and forgotten."""

from __future__ import annotations

import torch
from torch import Tensor

from models.scheduler.row_states import RowStates


def rows(start: int, stop: int, offset: float = 0.0) -> Tensor:
    """Row p is p + offset."""
    return torch.arange(start, stop, dtype=torch.float32)[:, None] + offset


def held(states: RowStates) -> list[float]:
    return states.take(states.first, states.stop).flatten().tolist()


def test_rows_follow_one_another_or_replace_what_was_there() -> None:
    states = RowStates()
    assert states.first == states.stop == 0
    states.add(0, rows(0, 4))
    states.add(4, rows(4, 6))
    assert held(states) == [0, 1, 2, 3, 4, 5]
    states.add(3, rows(3, 5, 0.5))
    assert held(states) == [0, 1, 2, 3.5, 4.5]
    states.add(9, rows(9, 11))
    assert (states.first, held(states)) == (9, [9, 10]), "there was a gap"
    states.add(2, rows(2, 3))
    assert (states.first, held(states)) == (2, [2])


def test_both_ends_are_forgotten() -> None:
    states = RowStates()
    for start in (2, 5, 6):
        states.add(start, rows(start, {2: 5, 5: 6, 6: 10}[start]))
    states.truncate(8)
    assert held(states) == [2, 3, 4, 5, 6, 7]
    states.drop(6)
    assert (states.first, held(states)) == (6, [6, 7])
    states.drop(3)
    assert states.first == 6
    states.truncate(6)
    assert states.first == states.stop == 6
    states.truncate(1)
    states.add(1, rows(1, 2))
    assert (states.first, held(states)) == (1, [1])
    states.drop(50)
    assert states.first == states.stop == 2


def test_what_is_missing_is_zeros() -> None:
    states = RowStates()
    states.add(3, rows(3, 6))
    assert states.take(1, 8).flatten().tolist() == [0, 0, 3, 4, 5, 0, 0]
    assert states.take(-1, 1).flatten().tolist() == [0, 0]
    assert states.take(4, 5).flatten().tolist() == [4]
