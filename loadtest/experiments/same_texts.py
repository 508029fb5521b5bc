"""The texts of two servers: which differ, by chance or not, and the verdict.

A comparison sets two ways to ask side by side. They are A and B, a server and itself again, or a
server with and without crowd. Each question counts once in it. The difference of a server from
itself is the floor. Only a higher difference shows that the other server is another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

from loadtest.client.answers import Answer, check_answer
from loadtest.report.ratios import wilson
from loadtest.trial.scene import Terms

Fate = Literal["same", "differs", "unsteady", "unanswered"]
Essence = tuple[str, str]  # the parts of an answer that must be the same: text and end

_DOUBT = 0.05


@dataclass(frozen=True, kw_only=True)
class Question:
    """One request as far as its text may depend on it; `task` may have several."""

    name: str
    task: str
    route: str
    body: str  # JSON
    temperature: float


class Asked(NamedTuple):
    """A way to ask: the side, streamed or whole, the number of requests at a time, the run."""

    side: str
    delivery: str
    crowd: int
    run: int


Answers = Mapping[Asked, Answer]  # of one question


class Comparison(NamedTuple):
    """Two ways to ask whose texts are compared, question by question."""

    kind: str
    name: str
    first: Asked
    second: Asked


def comparisons(sides: Sequence[str], terms: Terms) -> list[Comparison]:
    """Return all comparisons, A against B first."""
    crowds, deliveries = terms.crowds, terms.deliveries
    found = []
    for crowd, delivery in product(crowds, deliveries):
        first = Asked("A", delivery, crowd, 1)
        where = f"{crowd} at a time, {delivery}"
        if len(sides) > 1:
            name = f"A against B, {where}"
            found.append(Comparison("between", name, first, first._replace(side="B")))
    for side in sides:
        for crowd, delivery, run in product(crowds, deliveries, range(2, terms.runs + 1)):
            again = Asked(side, delivery, crowd, run)
            name = f"{side} against itself, {crowd} at a time, {delivery}"
            found.append(Comparison("again", name, again._replace(run=1), again))
        first = Asked(side, deliveries[0], crowds[0], 1)
        for crowd in crowds[1:]:
            name = f"{side}: {crowds[0]} at a time against {crowd}, {deliveries[0]}"
            found.append(Comparison("crowd", name, first, first._replace(crowd=crowd)))
        for delivery in deliveries[1:]:
            name = f"{side}: {deliveries[0]} against {delivery}, {crowds[0]} at a time"
            found.append(Comparison("delivery", name, first, first._replace(delivery=delivery)))
    return found


def text_of(answer: Answer) -> str:
    """Return all that the model wrote: what it thought, where it says so, and its answer."""
    return answer.reasoning + answer.text


def essence(answer: Answer) -> Essence | None:
    """Return what must be the same; None: there is no whole answer."""
    return None if check_answer(answer) else (text_of(answer), answer.finish_reason or "")


def differs(comparison: Comparison, answers: Answers) -> bool | None:
    """Return whether a question's two texts differ; None if one of them did not come."""
    first, second = essence(answers[comparison.first]), essence(answers[comparison.second])
    return None if first is None or second is None else first != second


def fate_of(answers: Iterable[tuple[Asked, Answer]]) -> Fate:
    """Classify a question by its texts.

    Returns:
        same: there is one text. differs: each side has one, always, and they are two. unsteady: a
        side has several itself. unanswered: an answer is missing, and nothing else was found.
    """
    texts: dict[str, set[Essence]] = {}
    is_whole = True
    for asked, answer in answers:
        found = essence(answer)
        if found is None:
            is_whole = False
        else:
            texts.setdefault(asked.side, set()).add(found)
    if any(len(of_side) > 1 for of_side in texts.values()):
        return "unsteady"
    if len(set().union(*texts.values())) > 1:
        return "differs"
    return "same" if is_whole else "unanswered"


def excess_chance(num_between_only: int, num_floor_only: int) -> float:
    """Return how likely chance alone lets two servers differ so much more than one from itself.

    Args:
        num_between_only: questions in which A and B differ and the server keeps to itself.
        num_floor_only: questions in which it is the other way round.

    Returns:
        The exact one-sided chance that of all of these as many are of the first sort, if each
        were as likely of either (McNemar, Psychometrika 12 (1947) 153).
    """
    num = num_between_only + num_floor_only
    ways = sum(math.comb(num, one) for one in range(num_between_only, num + 1))
    return ways / 2**num


def counts_of(found: Sequence[bool | None]) -> dict[str, float]:
    """Return how many questions have two texts, of how many, and the 95% interval of that share."""
    num_differing, num_compared = found.count(True), len(found) - found.count(None)
    share = wilson(num_differing, num_compared)
    return {
        "differing": num_differing,
        "compared": num_compared,
        "share_at_least": share.low,
        "share_at_most": share.high,
    }


def verdict(
    sides: Sequence[str],
    answers: Mapping[Question, Answers],
    compared: Sequence[Comparison],
    fates: Mapping[Fate, int],
) -> Iterator[str]:
    """Yield what follows, in sentences; nothing if all texts are the same."""
    num, is_once = len(answers), all(one.kind != "again" for one in compared)
    if fates.get("differs"):
        sure = ", each the same whenever it was asked"
        if is_once:
            sure = "; each was asked once, so a server that drops its seeds looks like this too"
        said = f"DIFFERENT: {fates['differs']} of {num} questions got one text from A and another"
        yield f"{said} from B{sure}"
    for side in sides:
        own = [[one for one in of.items() if one[0].side == side] for of in answers.values()]
        if num_own := sum(fate_of(of) == "unsteady" for of in own):
            said = f"{side} IS NOT ITS OWN MATCH: {num_own} of {num} questions got several texts"
            yield f"{said} from it, with the same seed"
    if fates.get("unsteady") and not is_once:
        yield from _beside_floors(answers, compared)
    if fates.get("unanswered"):
        yield f"UNKNOWN: {fates['unanswered']} of {num} questions lack an answer"


def _beside_floors(
    answers: Mapping[Question, Answers], compared: Sequence[Comparison]
) -> Iterator[str]:
    """Yield if A and B differ more often than every server from itself, beyond chance."""
    for between in (one for one in compared if one.kind == "between"):
        near = (between.first, between.second)
        floors = [one for one in compared if one.kind == "again" and one.first in near]
        pairs = [
            [(differs(between, of), differs(floor, of)) for of in answers.values()]
            for floor in floors
        ]
        rises = all(
            excess_chance(pair.count((True, False)), pair.count((False, True))) < _DOUBT
            for pair in pairs
        )
        own = ", ".join(
            f"{floor.first.side} {[differs(floor, of) for of in answers.values()].count(True)}"
            for floor in floors
        )
        num = [differs(between, of) for of in answers.values()].count(True)
        said = f"more than each from itself ({own}): B is not A"
        if not rises:
            said = f"no more than chance allows beside each from itself ({own})"
        yield f"{between.name}: {num} of {len(answers)} differ, {said}"
