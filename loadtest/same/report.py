"""An outcome as lines to read and as JSON to keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from loadtest.client.prompt_file import tasks_of
from loadtest.report.record import SAMPLES
from loadtest.same.counts import Comparison, Share, comparisons, share_of, shares_by_task
from loadtest.same.difference import Place
from loadtest.same.outcome import Finding, Outcome
from loadtest.same.plan import SideName
from loadtest.same.sides import Address, Reading

_EXCERPT = 200  # characters of a problem


def lines(outcome: Outcome, num_shown: int) -> Iterator[str]:
    """Return the report: a table, the first `num_shown` differences, what did not come, verdict."""
    plan, readings = outcome.plan, outcome.readings
    for side in plan.sides:
        yield _effort(outcome, side)
    yield f"{len(readings)} questions; those with two texts, of those compared:"
    tasks = tasks_of(plan.prompts)
    yield f"{'':<44}" + "".join(f"{task:>10}" for task in tasks) + f"{'all':>12}  95% interval"
    for comparison in comparisons(plan):
        yield from _rows(outcome, comparison, tasks)
    for finding in outcome.findings[:num_shown]:
        yield from _finding_lines(outcome, finding)
    if len(outcome.findings) > num_shown:
        yield f"and {len(outcome.findings) - num_shown} further differences"
    for name, reading in list(_unanswered(outcome))[:num_shown]:
        yield f"no answer: {name}: {reading.problem[:_EXCERPT]}"
    yield from outcome.verdict()


def content(outcome: Outcome, addresses: Mapping[SideName, Address]) -> dict[str, object]:
    """Return the entries of the result file after its head."""
    readings = outcome.readings
    all_readings = [reading for ways in readings.values() for reading in ways.values()]
    return {
        "verdict": outcome.verdict(),
        "sides": {
            side: {
                "model": model,
                "fields": dict(addresses[side].fields),
                "num_tokens": sum(one.num_tokens for one in _of(outcome, side)),
                "num_draft_tokens": sum(one.num_draft_tokens for one in _of(outcome, side)),
            }
            for side, model in outcome.models.items()
        },
        "num_questions": len(readings),
        "num_answers": len(all_readings),
        "num_retried": sum(reading.num_tries > 1 for reading in all_readings),
        "fates": dict(outcome.fates),
        "comparisons": [_comparison_content(outcome, one) for one in comparisons(outcome.plan)],
        "unanswered": [
            {"question": name, "problem": reading.problem[:_EXCERPT]}
            for name, reading in _unanswered(outcome)
        ],
        SAMPLES: [_finding_content(outcome, finding) for finding in outcome.findings],
    }


def _of(outcome: Outcome, side: SideName) -> list[Reading]:
    """Return all readings of a side."""
    found = [item for ways in outcome.readings.values() for item in ways.items()]
    return [reading for way, reading in found if way.side == side]


def _effort(outcome: Outcome, side: SideName) -> str:
    own = _of(outcome, side)
    num_tokens = sum(one.num_tokens for one in own)
    num_draft_tokens = sum(one.num_draft_tokens for one in own)
    counts = f"{len(own)} answers of {num_tokens} tokens, {num_draft_tokens} drafted"
    return f"{side}: {outcome.models[side]}, {counts}"


def _rows(outcome: Outcome, comparison: Comparison, tasks: list[str]) -> Iterator[str]:
    yield comparison.name
    cells = shares_by_task(outcome.readings, comparison, outcome.plan.prompts)
    for temperature in outcome.plan.temperatures:
        at = [cells.get((task, temperature)) for task in tasks]
        texts = ["-" if one is None else f"{one.num_differing}/{one.num_compared}" for one in at]
        whole = _sum([one for one in at if one is not None])
        row = f"  temperature {temperature:g}"
        yield f"{row:<44}" + "".join(f"{text:>10}" for text in texts) + _share_text(whole)
    by_task = [_sum([share for cell, share in cells.items() if cell[0] == task]) for task in tasks]
    texts = [f"{one.num_differing}/{one.num_compared}" for one in by_task]
    total = "".join(f"{text:>10}" for text in texts) + _share_text(_sum(by_task))
    yield f"{'  all temperatures':<44}{total}"


def _sum(shares: Sequence[Share]) -> Share:
    return Share(
        num_differing=sum(one.num_differing for one in shares),
        num_compared=sum(one.num_compared for one in shares),
    )


def _share_text(share: Share) -> str:
    low, high = share.interval
    counts = f"{share.num_differing}/{share.num_compared}"
    return f"{counts:>12}  {low:.1%} to {high:.1%}"


def _finding_lines(outcome: Outcome, finding: Finding) -> Iterator[str]:
    difference = finding.difference
    yield ""
    yield f"{_question_name(outcome, finding)}; {finding.comparison.name}"
    if difference.ends is not None:
        yield f"  same text, ended by {difference.ends[0]!r} and {difference.ends[1]!r}"
        return
    yield f"  part at character {difference.at}{_place_text(finding.place)}"
    yield f"    both   {difference.before!r}"
    first, second = finding.comparison.labels
    yield f"    {first:<6} {difference.a!r}"
    yield f"    {second:<6} {difference.b!r}"


def _place_text(place: Place | None) -> str:
    if place is None:
        return ""
    text = f", token {place.index} (by {place.source})"
    if place.tokens is not None:
        text += f": {place.tokens[0]!r} and {place.tokens[1]!r}"
    if place.margin is not None:
        text += f", log probabilities apart by {place.margin:.3f}"
    return text


def _comparison_content(outcome: Outcome, comparison: Comparison) -> dict[str, object]:
    cells = shares_by_task(outcome.readings, comparison, outcome.plan.prompts)
    return {
        "name": comparison.name,
        "kind": comparison.kind,
        **_share_content(share_of(outcome.readings, comparison)),
        "by_task": [
            {"task": task, "temperature": temperature, **_share_content(share)}
            for (task, temperature), share in cells.items()
        ],
    }


def _share_content(share: Share) -> dict[str, object]:
    low, high = share.interval
    return {**asdict(share), "interval": [round(low, 4), round(high, 4)]}


def _finding_content(outcome: Outcome, finding: Finding) -> dict[str, object]:
    place = finding.place
    return {
        "question": _question_name(outcome, finding),
        "comparison": finding.comparison.name,
        **asdict(finding.difference),
        "place": None if place is None else asdict(place),
    }


def _question_name(outcome: Outcome, finding: Finding) -> str:
    question = finding.question
    prompt = outcome.plan.prompts[question.prompt_at]
    drawn = f"temperature {question.temperature:g}, seed {question.seed}"
    return f"{prompt.name}, {question.route}, {drawn}"


def _unanswered(outcome: Outcome) -> Iterator[tuple[str, Reading]]:
    for question, ways in outcome.readings.items():
        for way, reading in ways.items():
            if reading.problem:
                prompt = outcome.plan.prompts[question.prompt_at]
                asked = f"{way.side}, {way.concurrency} at a time, run {way.run}"
                yield f"{prompt.name} at temperature {question.temperature:g} of {asked}", reading
