"""Conclusions of a study: the best k of each task, the draft to take, the end of drafting.

It reads a study's content as it is in its file, even if the study is not complete. A missing
measurement is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.acceptance.theory import constant_tokens, position_tokens
from loadtest.study.record import parts_of
from loadtest.study.theory import best_length, best_measured_length, speed_up
from loadtest.study.ways import fixed

Content = dict[str, Any]

_AS_GOOD = 0.97  # part of the best speed-up: within the spread of one run
_PAYS = 1.0
_NEAR = 0.2
LOW_COST = (
    0.05  # c of a draft that is small next to its target, as on a GPU: for a best k in theory
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Recommended settings for a task with one draft; k 0 means no drafts."""

    task: str
    draft: str
    k: int
    speed_up: float  # at k; 1.0 at k = 0
    as_good: tuple[int, int]  # the smallest and the largest k about as fast, with all between
    adaptive: float  # speed-up of k chosen live


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The prediction of theory for one k, from measured acceptance and cost."""

    k: int
    tokens_per_round: float  # (1 - a^(k+1)) / (1 - a)
    by_position: float  # 1 + S_1 + ... + S_k
    speed_up: float  # E / (1 + k c), E of the first formula
    # by_position / (growth + k c), as a longer pass takes longer, of rounds that have a draft, and
    # plain steps of the others: prompt lookup does not always find something.
    with_growth: float


def choice_of(task: str, draft: str, lines: list[Mapping[str, Any]]) -> Choice:
    """Choose the best fixed k of measured lines, and the range of about equal ones."""
    speed_ups = {0: 1.0} | fixed(lines)
    best = best_measured_length(speed_ups)
    good = [k for k, speed in speed_ups.items() if speed >= _AS_GOOD * speed_ups[best]]
    low = high = best
    ks = sorted(speed_ups)
    while low != ks[0] and ks[ks.index(low) - 1] in good:
        low = ks[ks.index(low) - 1]
    while high != ks[-1] and ks[ks.index(high) + 1] in good:
        high = ks[ks.index(high) + 1]
    return Choice(
        task=task,
        draft=draft,
        k=best,
        speed_up=speed_ups[best],
        as_good=(low, high),
        adaptive=next(line["speed_up"] for line in lines if line["way"] == "adaptive"),
    )


def findings_of(content: Content) -> dict[str, Any]:
    """Return all figures of a study that other pages show, ready for JSON."""
    draft = chosen_draft(content)
    temperature = content["settings"]["temperature"]
    best = []
    for choice in best_choices(content):
        measured = accepted_at(content, choice.draft, choice.task).get(temperature)
        rate = None if measured is None else measured["acceptance"]["value"]
        theory = None if rate is None else best_length(rate, LOW_COST)
        best.append({**asdict(choice), "acceptance": rate, "best_k_at_low_cost": theory})
    return {
        "choices": best,
        "draft": draft,
        "low_cost": LOW_COST,
        "last_paying_batch": last_paying_batch(content, draft),
        "shares_near_theory": shares_near_theory(content),
    }


def shares_near_theory(content: Content) -> dict[str, float] | None:
    """Share of measured speed-ups within a fifth of both forms of theory; None: no such pairs."""
    temperature = content["settings"]["temperature"]
    near: dict[str, list[bool]] = {"speed_up": [], "with_growth": []}
    for (draft, task), part in parts_of(content, "speedup"):
        measured = fixed(part["lines"])
        for one in expected(content, draft, task, temperature):
            for form, found in near.items():
                found.append(abs(measured[one.k] / getattr(one, form) - 1.0) <= _NEAR)
    return {form: statistics.mean(found) for form, found in near.items() if found} or None


def choices(content: Content) -> list[Choice]:
    """Return the choice for every draft and task whose speed was measured."""
    return [
        choice_of(task, draft, part["lines"])
        for (draft, task), part in parts_of(content, "speedup")
    ]


def are_compared(content: Content) -> bool:
    """Return whether the speed of several drafts was measured on the same tasks."""
    tasks: dict[str, set[str]] = {}
    for choice in choices(content):
        tasks.setdefault(choice.draft, set()).add(choice.task)
    drafts = content["settings"]["drafts"]
    found = [tasks.get(draft, set()) for draft in drafts]
    return len(drafts) > 1 and bool(found[0]) and all(some == found[0] for some in found)


def chosen_draft(content: Content) -> str:
    """Return the draft with the largest speed-up, geometric mean over tasks; else the first."""
    drafts: list[str] = content["settings"]["drafts"]
    if not are_compared(content):
        return drafts[0]
    speeds: dict[str, list[float]] = {draft: [] for draft in drafts}
    for choice in choices(content):
        speeds[choice.draft].append(choice.speed_up)
    return max(drafts, key=lambda draft: statistics.geometric_mean(speeds[draft]))


def best_choices(content: Content) -> list[Choice]:
    """Return the fastest draft's choice for every task."""
    best: dict[str, Choice] = {}
    for choice in choices(content):
        if choice.task not in best or choice.speed_up > best[choice.task].speed_up:
            best[choice.task] = choice
    return list(best.values())


def accepted_at(content: Content, draft: str, task: str) -> dict[float, Mapping[str, Any]]:
    """Return measured acceptance by temperature, if tokens were drafted."""
    part = content["parts"].get(f"acceptance/{draft}/{task}")
    measured = [] if part is None else part["temperatures"]
    return {one["temperature"]: one for one in measured if one["acceptance"] is not None}


def expected(content: Content, draft: str, task: str, temperature: float) -> list[Expected]:
    """Return the prediction for every k of the study; empty without acceptance or costs."""
    measured = accepted_at(content, draft, task).get(temperature)
    costs = content["parts"].get(f"costs/{draft}")
    if measured is None or costs is None:
        return []
    rate = measured["acceptance"]["value"]
    share = measured["num_drafted_rounds"] / measured["num_rounds"]
    ratio = costs["cost_ratio"]
    found = []
    for k in content["settings"]["k"]:
        tokens = constant_tokens(rate, k)
        by_position = position_tokens(measured["hazards"], k)
        time = costs["growth"].get(str(k), 1.0) + k * ratio
        found.append(
            Expected(
                k=k,
                tokens_per_round=tokens,
                by_position=by_position,
                speed_up=speed_up(tokens, k, ratio),
                with_growth=(1 + share * (by_position - 1)) / (1 + share * (time - 1)),
            )
        )
    return found


def expected_best(
    content: Content, draft: str, task: str, temperature: float
) -> tuple[int, float] | None:
    """Return the best k by measured acceptance and pass times, and its speed-up (1.0 at 0).

    It is None if one of the two was not measured.
    """
    lines = expected(content, draft, task, temperature)
    if not lines:
        return None
    speeds = {line.k: line.with_growth for line in lines}
    best = best_measured_length(speeds)
    return best, speeds.get(best, 1.0)


def batches(content: Content, draft: str) -> dict[int, Choice]:
    """Return the best fixed k by batch."""
    found = {
        int(batch): choice_of("all", draft, part["lines"])
        for (of, batch), part in parts_of(content, "batch")
        if of == draft
    }
    return dict(sorted(found.items()))


def last_paying_batch(content: Content, draft: str) -> int | None:
    """Return the largest batch up to which some fixed k beats plain decoding; None without one."""
    last = None
    for batch, choice in batches(content, draft).items():
        if choice.speed_up <= _PAYS:
            break
        last = batch
    return last
