"""What an observer of one choice reports, and that every sink is given the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deployments.api.observer import CLIENT_GONE, ChoiceObserver, Sink
from models.protocol.errors import Overloaded
from router.stats import SpeculationStats
from router.types import Delta, Finished

END = Finished(
    finish_reason="stop",
    num_prompt_tokens=2,
    num_completion_tokens=3,
    speculation=SpeculationStats(),
)


class Notes(Sink):
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def first_tokens(self, choice: int, num_tokens: int, after_s: float) -> None:
        self.events.append(("first", choice, num_tokens, after_s))

    def more_tokens(self, choice: int, num_tokens: int, gap_s: float) -> None:
        self.events.append(("more", choice, num_tokens, gap_s))

    def phases(self, choice: int, queue_s: float, prefill_s: float, decode_s: float) -> None:
        self.events.append(("phases", choice, queue_s, prefill_s, decode_s))

    def finished(self, choice: int, end: Finished, after_s: float) -> None:
        self.events.append(("finished", choice, end, after_s))

    def failed(self, choice: int, code: str) -> None:
        self.events.append(("failed", choice, code))


def test_a_choice_is_measured_from_its_beginning_for_all_sinks() -> None:
    sinks = Notes(), Notes()
    times = iter([10.0, 11.5, 12.0, 12.5, 13.0, 15.0])  # beginning, place, then an item each
    observer = ChoiceObserver(4, sinks, clock=lambda: next(times))
    with observer:
        observer.admit()
        for item in (Delta("a", (1,)), Delta("", ()), Delta("bc", (2, 3)), END):
            observer.add(item)
    expected = [
        ("first", 4, 1, 2.0),
        ("more", 4, 2, 1.0),
        ("phases", 4, 1.5, 0.5, 3.0),
        ("finished", 4, END, 5.0),
    ]
    assert [sink.events for sink in sinks] == [expected, expected]


def test_tokens_that_the_client_had_are_not_told() -> None:
    notes = Notes()
    observer = ChoiceObserver(0, (notes,), clock=lambda: 7.0)
    with observer:
        for item in (Delta("abc", (1, 2, 3), num_verdicts=0), Delta("d", (4,)), END):
            observer.add(item)
    assert [event[:3] for event in notes.events[:2]] == [("first", 0, 1), ("phases", 0, 0.0)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Overloaded("full"), "overloaded"),
        (KeyError("x"), "internal_error"),
        (GeneratorExit(), CLIENT_GONE),
        (asyncio.CancelledError(), CLIENT_GONE),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_error_is_reported_by_its_code_and_raised(error: BaseException, code: str) -> None:
    notes = Notes()
    with pytest.raises(type(error)), ChoiceObserver(0, (notes,)):
        raise error
    assert notes.events == [("failed", 0, code)]


def test_leaving_after_the_end_is_no_failure_but_an_error_is() -> None:
    for error, num_failures in ((GeneratorExit(), 0), (KeyError("x"), 1)):
        notes = Notes()
        observer = ChoiceObserver(0, (notes,))
        observer.add(END)
        with pytest.raises(type(error)), observer:
            raise error
        assert len([event for event in notes.events if event[0] == "failed"]) == num_failures


def test_items_that_end_without_an_end_are_a_failure() -> None:
    notes = Notes()
    observer = ChoiceObserver(3, (notes,), clock=lambda: 0.0)
    with observer:
        observer.add(Delta("a", (1,)))
    assert notes.events == [("first", 3, 1, 0.0), ("failed", 3, "internal_error")]
