"""An experiment: workloads x ways x stages x batches, run by turns, with measures and claims.

An experiment is a value (`loadtest/experiments/`). A cell is a workload at a batch on a stage.
`measure` runs all ways of every cell by turns and keeps the figures of each turn. It fails if a
text depends on the way. One record and one table serve all experiments.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, product, takewhile
from typing import Any

from loadtest.frame.claims import CELL, Claim, Goal, cell_of
from loadtest.frame.runs import MEASURES, Ask, Run
from loadtest.frame.stages import Models, Opener, Stage
from loadtest.frame.ways import PLAIN, Way
from loadtest.report.interleaved import interleave, median_ratio
from router.drafters.draft_model import POOL

_WARM_UP_TOKENS = 16
_KEPT_DIGITS = 5


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of a workload's requests.

    Attributes:
        count: number of requests.
        tokens: limit of each answer.
        batch: requests at a time.
        turn: number of the run, from 0; a workload may ask something new each time.
        models: the pair that is asked: its tokenizer is that of the prompts.
    """

    count: int
    tokens: int
    batch: int = 1
    turn: int
    models: Models


Workload = Callable[[Terms], Sequence[Ask]]
Cell = tuple[str, str, int]  # stage, workload, batch
Turn = Callable[[], Mapping[str, float]]  # one turn of a line: its measures by name
# Lines of a cell that are no requests to a stage, by the names of their rows; ready to be run.
Lines = Callable[[Terms, Mapping[str, Way]], AbstractContextManager[Mapping[str, Turn]]]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment.

    Attributes:
        question: it answers, in words.
        workloads: makers of requests, by name.
        ways: by name, in the order of the table; the first is the one that others are compared to.
        lines: makers of lines of their own, by the name of the workload that each stands for.
        stages: names of `STAGES`.
        batches: requests at a time.
        cells: some of (stage, workload, batch) in place of all combinations of these.
        measures: names of `MEASURES`, the first one compared.
        goals: claims.
        pair: of models, by a name that `pairs.py` knows.
        engine: fields of the models' sections.
        router: fields of the section `router`.
        of_prompts: makes workloads of a user's prompts, given the file or the set; None: one for
            each task.
        tokens: of each answer, at most.
        count: requests of a run for each place; at least one.
        run_s: a run has as many requests as the first way answers in about this time, and at least
            two for each place; 0: `count` decides.
        repeats: turns.
        warm_s: how long a way with a planner runs before it counts.
    """

    question: str
    workloads: Mapping[str, Workload] = field(default_factory=dict)
    ways: Mapping[str, Way] = field(default_factory=dict)
    lines: Mapping[str, Lines] = field(default_factory=dict)
    stages: tuple[str, ...] = ("engine",)
    batches: tuple[int, ...] = (1,)
    cells: tuple[Cell, ...] = ()
    measures: tuple[str, ...] = ("tokens_per_s", "tokens_per_round", "acceptance", "mean_k")
    goals: tuple[Goal, ...] = ()
    pair: str = "demo"
    engine: Mapping[str, Any] = field(default_factory=dict)
    router: Mapping[str, Any] = field(default_factory=dict)
    of_prompts: Callable[[str], Mapping[str, Workload]] | None = None
    tokens: int = 64
    count: int = 4
    run_s: float = 0.0
    repeats: int = 5
    warm_s: float = 0.0

    def quick(self) -> Experiment:
        """Return the smallest form that runs every part."""
        first = self.places()[0][1]
        return replace(
            self,
            workloads={name: one for name, one in self.workloads.items() if name == first},
            run_s=0.0,
            lines=dict(list(self.lines.items())[:1]),
            batches=self.batches[:1],
            stages=self.stages[:1],
            cells=self.cells[:1],
            tokens=min(self.tokens, 16),
            count=min(self.count, 2),
            repeats=2,
            warm_s=0.0,
        )

    def for_drafts(self, names: Sequence[str]) -> Experiment:
        """Return it for models with these pools of drafts.

        A way with one draft model is run with each, and is left out where there is none.
        """
        ways: dict[str, Way] = {}
        for name, way in self.ways.items():
            if way.drafts != (POOL,):
                ways[name] = way
            else:
                for pool in names:
                    label = name if pool == POOL else f"{name}, {pool}"
                    ways[label] = replace(way, drafts=(pool,))
        return replace(self, ways=ways)

    def places(self) -> list[Cell]:
        """Return the cells that are run, each as (stage, workload, batch)."""
        parts = (*self.workloads, *self.lines)
        every = self.cells or product(self.stages, parts, self.batches)
        return [cell for cell in every if cell[1] in parts]

    def ways_on(self, stage: str) -> dict[str, Way]:
        """Return the ways that are run on a stage."""
        return {n: way for n, way in self.ways.items() if not way.stages or stage in way.stages}

    @property
    def base(self) -> str:
        """The way that others are compared with; empty: the first of the table."""
        return next(iter(self.ways), "")

    def stages_for(self, cell: str) -> list[str]:
        """Return the stages that the ways of a cell are run on, given the cell's own."""
        return list(dict.fromkeys(way.at or cell for way in self.ways.values()))


@dataclass(kw_only=True)
class Result:
    """All that was found.

    Attributes:
        rows: a row for each cell and way: `stage`, `workload`, `batch`, `way`, `runs` by measure.
        problems: what did not hold, a line each.
        extra: further entries of the record.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def claims(self, goals: Sequence[Goal]) -> list[Claim]:
        """Return the claims that the rows have figures for."""
        return [claim for goal in goals for claim in goal.claims(self.rows)]


def measure(
    experiment: Experiment,
    models: Models,
    openers: Mapping[str, Opener],
    on_cell: Callable[[Result], None] = lambda result: None,
    known: Result | None = None,
) -> Result:
    """Run an experiment.

    Args:
        experiment: what to run.
        models: of its pair.
        openers: of its stages, by name.
        on_cell: called with the result so far after every cell.
        known: result of an earlier run that was cut: its cells are not run again.

    Raises:
        ValueError: a stage cannot do what a way says.
        RuntimeError: an answer is an error.
    """
    result = known or Result()
    result.extra["is_complete"] = False
    done = set(map(cell_of, result.rows))
    left = [cell for cell in experiment.places() if cell not in done]
    for name, cells in groupby(left, lambda cell: cell[0]):
        with ExitStack() as stack:
            wanted = experiment.stages_for(name) if experiment.workloads else []
            stages = {at: stack.enter_context(openers[at](models)) for at in wanted}
            for values in cells:
                cell = dict(zip(CELL, values, strict=True))
                if cell["workload"] in experiment.lines:
                    _measure_lines(experiment, models, cell, result)
                else:
                    _measure_cell(experiment, models, stages, cell, result)
                on_cell(result)
    result.extra["is_complete"] = True
    return result


def _measure_cell(
    experiment: Experiment,
    models: Models,
    stages: Mapping[str, Stage],
    cell: Mapping[str, Any],
    result: Result,
) -> None:
    ways = experiment.ways_on(cell["stage"])
    on = {name: stages[way.at or cell["stage"]] for name, way in ways.items()}
    asks = _Turns(experiment.workloads[cell["workload"]], experiment, models, cell["batch"])
    if experiment.run_s:
        asks.fill(on[experiment.base], ways[experiment.base], experiment.run_s)
    lines: dict[str, Callable[[], Run]] = {
        name: partial(asks.run, on[name], way) for name, way in ways.items()
    }
    for name, way in ways.items():
        asks.warm(on[name], way, experiment.warm_s)
    found = interleave(lines, experiment.repeats)
    for name, runs in found.items():
        row = {**cell, "way": name, "runs": _figures(experiment.measures, runs)}
        like = experiment.ways[name].like
        if like in found:
            row["alike"] = {like: _rounded(alike(runs, found[like]))}
        result.rows.append(row)
    where = ", ".join(str(value) for value in cell.values())
    result.problems += [f"{where}: {text}" for text in _differences(ways, found)]


def _measure_lines(
    experiment: Experiment, models: Models, cell: Mapping[str, Any], result: Result
) -> None:
    """Run the cell's own lines by turns, after one turn that does not count."""
    terms = _terms(experiment, models, cell["batch"])
    with experiment.lines[cell["workload"]](terms, experiment.ways) as lines:
        interleave(lines, 1)
        found = interleave(lines, experiment.repeats)
    for name, turns in found.items():
        runs = {measure: [_rounded(turn[measure]) for turn in turns] for measure in turns[0]}
        result.rows.append({**cell, "way": name, "runs": runs})


def _terms(experiment: Experiment, models: Models, batch: int) -> Terms:
    return Terms(
        count=experiment.count * batch,
        tokens=experiment.tokens,
        batch=batch,
        turn=0,
        models=models,
    )


class _Turns:
    """The requests of a cell: each way has the same ones in the same turn."""

    def __init__(self, workload: Workload, experiment: Experiment, models: Models, batch: int):
        self._workload = workload
        self._terms = _terms(experiment, models, batch)
        self._batch = batch
        self._turns: dict[str, int] = {}  # by way
        self._made: dict[int, Sequence[Ask]] = {}  # by turn

    def run(self, stage: Stage, way: Way) -> Run:
        """Run the next turn of a way."""
        turn = self._turns[repr(way)] = self._turns.get(repr(way), 0) + 1
        return stage.run(self._asks(turn), way, self._batch)

    def fill(self, stage: Stage, way: Way, run_s: float) -> None:
        """Have as many requests as a way answers in `run_s`, at least two for each place.

        The measured time ends with the first place that stays empty (`Run.tokens_per_s`).
        """
        count = 2 * self._batch
        self._terms = replace(self._terms, count=count)
        least = self._workload(self._terms)
        for _ in range(2):  # the first pass makes things, which is not measured
            run = stage.run(least, way, self._batch)
        took_s = run.num_tokens / run.tokens_per_s
        self._terms = replace(self._terms, count=count * max(1, math.ceil(run_s / took_s)))

    def warm(self, stage: Stage, way: Way, warm_s: float) -> None:
        """Run a short form once, and on for `warm_s` where a planner learns."""
        short = [
            replace(ask, max_tokens=min(_WARM_UP_TOKENS, ask.max_tokens), schema=None, eos_ids=())
            for ask in self._asks(0)[: self._batch]
        ]
        stage.run(short, way, self._batch)
        passed_s = 0.0
        while (way.k is None or way.is_pinned) and passed_s < warm_s:
            run = stage.run(self._asks(0), way, self._batch)
            passed_s += max(one.ended_s for one in run.answers) - min(
                one.began_s for one in run.answers
            )

    def _asks(self, turn: int) -> Sequence[Ask]:
        if turn not in self._made:
            self._made[turn] = self._workload(replace(self._terms, turn=turn))
        return self._made[turn]


def _figures(measures: Sequence[str], runs: Sequence[Run]) -> dict[str, list[float]]:
    return {name: [_rounded(MEASURES[name](run)) for run in runs] for name in measures}


def _rounded(value: float) -> float:
    return float(f"{value:.{_KEPT_DIGITS}g}")


def alike(runs: Sequence[Run], others: Sequence[Run]) -> float:
    """Return the share of answers' lengths until they part, in tokens or characters."""
    pairs = [
        (own, other)
        for run, also in zip(runs, others, strict=True)
        for own, other in zip(run.contents, also.contents, strict=True)
    ]
    same = sum(
        sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(*pair, strict=False)))
        for pair in pairs
    )
    return same / max(1, sum(min(len(own), len(other)) for own, other in pairs))


def _differences(ways: Mapping[str, Way], found: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """Yield a line for each way with a text that another way with the same word does not have.

    Token ids and texts of different stages are not compared.
    """
    first: dict[str, str] = {}
    for name, way in ways.items():
        base = first.setdefault(way.texts, name) if way.texts else name
        for turn, (run, wanted) in enumerate(zip(found[name], found[base], strict=True)):
            places = [
                str(place)
                for place, (own, other) in enumerate(
                    zip(run.contents, wanted.contents, strict=True)
                )
                if type(own) is type(other) and own != other
            ]
            if places:
                yield f"turn {turn}: answers {', '.join(places)} of {name} are not those of {base}"


def table(rows: Sequence[Mapping[str, Any]], base: str = PLAIN) -> list[str]:
    """Return a Markdown table: medians of each measure, and the first measure's ratio to `base`.

    A measure that a row lacks has an empty cell.
    """
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows for name in row["runs"]))
    if base not in {row["way"] for row in rows}:
        base = rows[0]["way"]
    bases = {cell_of(row): row["runs"][names[0]] for row in rows if row["way"] == base}
    lines = [
        f"| where | way | {' | '.join(names)} | {f'times {base}' if base else ''} |",
        f"|---|---|{'---|' * (len(names) + 1)}",
    ]
    for row in rows:
        runs = row["runs"]
        figures = [f"{statistics.median(runs[name]):.4g}" if name in runs else "" for name in names]
        below = bases.get(cell_of(row))
        ratio = "" if below is None else f"{median_ratio(runs[names[0]], below):.2f}"
        where = ", ".join(map(str, cell_of(row)))
        lines.append(f"| {where} | {row['way']} | {' | '.join(figures)} | {ratio} |")
    return lines
