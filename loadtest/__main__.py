"""`python -m loadtest NAME` runs an experiment or a trial; `--list` names them all.

    python -m loadtest --list
    python -m loadtest forced --output forced.json
    python -m loadtest study --target DIR --draft DIR --prompts FILE --output study.json
    python -m loadtest faults --set rounds=20 --output faults.json
    python -m loadtest --theory 0.8 0.1 5

The ways of an experiment run by turns. It prints a table and its claims. It ends with 1 if a text
depended on the way. A trial ends with 1 if anything did not hold, a claim included; `--set` changes
its terms. `--output` keeps the record, with a picture beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.experiments.registry import EXPERIMENTS, STAGES, TRIALS
from loadtest.frame import llama
from loadtest.frame.claims import Claim, summary
from loadtest.frame.expected import advice, beside_theory, theory_table
from loadtest.frame.experiment import Cell, Experiment, Result, measure, table
from loadtest.frame.page import PAGE, page
from loadtest.frame.pairs import find_models
from loadtest.frame.picture import draw
from loadtest.frame.record import read_result, result_to_go_on, write_result
from loadtest.frame.stages import Models, Opener
from loadtest.frame.theory import draw_theory, step_share, theory_lines
from loadtest.frame.workloads import by_task
from loadtest.report.record import SAMPLES
from loadtest.trial.command import ChosenTrial, choose
from models.arguments import output_file, positive, seconds
from models.files import naming

_OF_TRIALS: dict[str, Any] = {"config": None, "set": []}  # that no experiment has, and unused
_OF_BOTH = {"name", "list", "page", "summary", "quick", "output", "url", *_OF_TRIALS}
_USUAL = {"threads": 2, "device": "cpu", "dtype": "bfloat16"}  # of models; no trial takes them


@dataclass(frozen=True)
class ChosenExperiment:
    """An experiment with the options of the command line, run as a `ChosenTrial` is.

    A missed claim is told, and only a text that differs is a failure.
    """

    experiment: Experiment
    models: Models
    openers: Mapping[str, Opener]
    known: Result | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def question(self) -> str:
        """The question in words."""
        return self.experiment.question

    @property
    def base(self) -> str:
        """The way that others are compared with."""
        return self.experiment.base

    def run(self, keep: Callable[[Result], None]) -> Result:
        """Run it; `keep` gets the result so far."""
        return measure(self.experiment, self.models, self.openers, keep, self.known)

    def claims(self, result: Result) -> list[Claim]:
        """Return the claims that the result has figures for."""
        return result.claims(self.experiment.goals)

    def theory(self, result: Result) -> list[dict[str, Any]]:
        """Return what theory says beside the rows; empty if it says nothing of them."""
        return beside_theory(result.rows, self.experiment.ways)

    def has_failed(self, result: Result) -> bool:
        """Return whether the command ends with 1."""
        return bool(result.problems)


Chosen = ChosenExperiment | ChosenTrial


def main(argv: Sequence[str] | None = None) -> int:
    """Run an experiment or a trial from the command line; return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    arguments = parser.parse_args(words)
    if arguments.list:
        _print_list(arguments.name)
        return 0
    if arguments.page:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if arguments.summary:
        try:
            _print_summary(arguments.summary)
        except ValueError as error:
            parser.error(f"--summary: {error}")
        return 0
    if arguments.theory is not None:
        try:
            _print_theory(arguments.theory, arguments.output)
        except ValueError as error:
            parser.error(f"--theory: {error}")
        return 0
    if arguments.name is None:
        parser.error("an experiment is needed, or a trial; --list names them")
    if arguments.resume and arguments.output is None:
        parser.error("--resume goes with --output, the record to go on with")
    try:
        chosen = _chosen(arguments)
        keep = partial(_keep, arguments.output, words, vars(arguments), chosen)
        result = chosen.run(keep)
    except ValueError as error:
        parser.error(str(error))
    return _reported(chosen, result, arguments.output, keep)


def _with_stages(
    experiment: Experiment, openers: Mapping[str, Opener]
) -> tuple[Experiment, list[str]]:
    """Return the experiment with the ways that can be run here, and the names of the others."""
    here = {"", "own", *openers}
    needs = {name: {way.at, way.target.get("engine", "")} for name, way in experiment.ways.items()}
    skipped = [name for name, parts in needs.items() if not parts <= here]
    if skipped:
        print(f"not run, as their programs are not given: {', '.join(skipped)}")
    ways = {name: way for name, way in experiment.ways.items() if name not in skipped}
    return replace(experiment, ways=ways), skipped


def _reported(
    chosen: Chosen, result: Result, output: Path | None, keep: Callable[[Result], None]
) -> int:
    keep(result)
    for line in table(result.rows, chosen.base):
        print(line)
    theory = chosen.theory(result)
    if theory:
        print("", *theory_table(theory), "", *advice(result.rows, chosen.base), sep="\n")
    for row in result.rows:
        for like, share in row.get("alike", {}).items():
            print(f"{row['workload']}: {share:.0%} of {row['way']}'s texts are as {like}'s begin")
    for claim in chosen.claims(result):
        print(claim)
    print(*summary(result.rows), sep="\n")
    for problem in result.problems:
        print(f"VIOLATED: {problem}")
    if output is not None:
        draw(result.rows, output.with_suffix(".png"))
    return int(chosen.has_failed(result))


def _keep(
    path: Path | None,
    words: Sequence[str],
    options: Mapping[str, object],
    chosen: Chosen,
    result: Result,
) -> None:
    theory = chosen.theory(result)
    if theory:
        result = replace(result, extra=result.extra | {"theory": theory})
    settings = {**options, **chosen.settings}
    write_result(path, chosen.question, words, settings, result, chosen.claims(result))


def _chosen(arguments: argparse.Namespace) -> Chosen:
    """Return what is run, with the options of the command line.

    Raises:
        ValueError: an option names something that is not there.
    """
    options = vars(arguments)
    if arguments.name in TRIALS:
        given = {name for name, value in options.items() if value and value != _USUAL.get(name)}
        if wrong := [name for name in options if name in given - _OF_BOTH]:
            raise ValueError(f"--{wrong[0].replace('_', '-')}: a trial has no such option")
        return choose(
            TRIALS[arguments.name],
            is_quick=arguments.quick,
            given=arguments.set,
            config=arguments.config,
            urls=arguments.url or (),
        )
    if wrong := [name for name, unused in _OF_TRIALS.items() if options[name] != unused]:
        raise ValueError(f"--{wrong[0]}: an experiment has no such option")
    experiment, models = _experiment(arguments)
    openers = {**STAGES, **llama.openers(arguments)}
    if arguments.url:
        [url] = arguments.url
        openers["http"] = lambda models: STAGES["http"](replace(models, url=url))
    experiment, skipped = _with_stages(experiment, openers)
    settings = {"pair": models.label, "skipped": skipped}
    known = result_to_go_on(arguments.output, options | settings) if arguments.resume else None
    return ChosenExperiment(experiment, models, openers, known, settings)


def _experiment(arguments: argparse.Namespace) -> tuple[Experiment, Models]:
    """Return the experiment with the options of the command line, and its models.

    Raises:
        ValueError: an option names something that is not there.
    """
    experiment = EXPERIMENTS[arguments.name]
    if arguments.prompts is not None:
        if not experiment.workloads:
            raise ValueError(f"--prompts: {arguments.name} asks for no prompts")
        of_prompts = experiment.of_prompts or partial(by_task, num_prompts=64)
        experiment = replace(experiment, workloads=of_prompts(arguments.prompts))
    models = _models(arguments, experiment)
    if arguments.url:
        if len(arguments.url) > 1 or "http" not in experiment.stages:
            raise ValueError(f"--url: {arguments.name} asks at most one service, at the stage http")
        experiment = replace(experiment, stages=("http",))
    experiment = llama.with_ways(experiment.for_drafts(list(models.drafts)), arguments.llama_way)
    if arguments.quick:
        experiment = experiment.quick()
    named = {**experiment.workloads, **experiment.lines}
    chosen = _among("workload", arguments.workload, named) or named
    changes: dict[str, Any] = {
        "ways": _among("way", arguments.way, experiment.ways),
        **{
            kind: {name: one for name, one in getattr(experiment, kind).items() if name in chosen}
            for kind in ("workloads", "lines")
        },
    }
    for name in ("tokens", "count", "run_s", "repeats", "warm_s"):
        changes[name] = getattr(arguments, name)
    for name, given in (("stages", arguments.stage), ("batches", arguments.batch)):
        changes[name] = None if given is None else tuple(given)
    changes["cells"] = _chosen_cells(experiment, arguments)
    experiment = replace(
        experiment, **{name: value for name, value in changes.items() if value is not None}
    )
    engine = {
        "dtype": arguments.dtype,
        "device": arguments.device,
        "num_threads": arguments.threads,
        **experiment.engine,
    }
    most = max(batch for _, _, batch in experiment.places())
    engine.setdefault("max_model_len", 512)
    engine.setdefault("kv_cache_tokens", (most + 1) * engine["max_model_len"])
    return experiment, replace(models, engine=engine, router=experiment.router)


def _chosen_cells(experiment: Experiment, arguments: argparse.Namespace) -> tuple[Cell, ...]:
    """Return the cells of an experiment that names its cells, as far as the options allow them.

    Raises:
        ValueError: they allow none.
    """
    found = tuple(
        (stage, workload, batch)
        for stage, workload, batch in experiment.cells
        if stage in (arguments.stage or [stage])
        and workload in (arguments.workload or [workload])
        and batch in (arguments.batch or [batch])
    )
    if experiment.cells and not found:
        raise ValueError("--stage, --workload, --batch: this experiment has no such cell")
    return found


def _models(arguments: argparse.Namespace, experiment: Experiment) -> Models:
    if arguments.target is None:
        return find_models(arguments.pair or experiment.pair)
    drafts = arguments.draft or []
    names = ["draft", *(f"draft-{number}" for number in range(2, len(drafts) + 1))]
    return Models(
        label=Path(arguments.target).resolve().name,
        target=Path(arguments.target),
        drafts=dict(zip(names, map(Path, drafts), strict=False)),
    )


def _among(kind: str, names: Sequence[str] | None, known: Mapping[str, Any]) -> Any:
    if names is None:
        return None
    for name in names:
        if name not in known:
            raise ValueError(f"--{kind}: must be among {', '.join(known)}, got {name!r}")
    return {name: known[name] for name in known if name in names}


def _print_list(name: str | None) -> None:
    """Print all names with their questions, or the terms of one trial."""
    if name in TRIALS:
        for term, value in TRIALS[name].terms.items():
            print(f"{term}={','.join(map(str, value)) if isinstance(value, tuple) else value}")
        return
    questions = {name: one.question for name, one in EXPERIMENTS.items()}
    questions |= {name: one.question for name, one in TRIALS.items()}
    width = max(map(len, questions))
    for name, question in questions.items():
        print(f"{name:<{width}}  {question}")


def _print_theory(values: Sequence[float], picture: Path | None) -> None:
    acceptance, cost, k = values
    if not k.is_integer():
        raise ValueError(f"k must be a whole number, got {k:g}")
    print(*theory_lines(acceptance, cost, int(k)), sep="\n")
    if picture is not None:
        draw_theory(step_share(cost), picture)


def _print_summary(paths: Sequence[Path]) -> None:
    """Print adaptive k next to the best fixed k and to plain decoding, over several records.

    Raises:
        ValueError: one is no record of an experiment; names it.
    """
    rows = []
    for path in paths:
        with naming(path):
            record = read_result(path)
            pair = record["settings"]["pair"]
            own = [{**row, "workload": f"{pair}, {row['workload']}"} for row in record[SAMPLES]]
            summary(own)  # what it cannot sum up is told with the file's name
            rows += own
    print(*summary(rows), sep="\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "name",
        nargs="?",
        choices=sorted({*EXPERIMENTS, *TRIALS}),
        metavar="NAME",
        help="see --list",
    )
    add("--list", action="store_true", help="name all, with their questions; or a trial's terms")
    add("--page", action="store_true", help="write the page of figures from the kept records")
    add("--summary", nargs="+", type=Path, metavar="FILE", help="of adaptive k, over records")
    add(
        "--theory",
        nargs=3,
        type=float,
        metavar=("A", "C", "K"),
        help="only calculate: acceptance, "
        "a draft step over a pass or above 1 the other way round, k; --output draws it",
    )
    add("--quick", action="store_true", help="the smallest form that runs every part")
    add("--pair", help="demo, smollm2, a grown pair's name, or [LABEL=]DIR with target/ and draft/")
    add("--target", help="folder of your own target, in place of --pair")
    add("--draft", action="append", help="folder of a draft model for it; may be given again")
    add("--prompts", help="a file of your own prompts, a JSON object a line; or demo, kinds")
    add("--stage", nargs="+", choices=("engine", "link", "http"), help="where")
    add("--workload", nargs="+", help="some of its workloads")
    add("--way", nargs="+", help="some of its ways")
    add("--batch", nargs="+", type=positive, help="requests at a time")
    add("--tokens", type=positive, help="of each answer, at most")
    add("--count", type=positive, help="requests of a run for each place")
    add("--run-s", type=seconds, help="a run has requests for so long; 0: --count decides")
    add("--repeats", type=positive, help="turns")
    add("--warm-s", type=seconds, help="seconds that a way which learns runs before it counts")
    add("--device", default=_USUAL["device"], help="torch device of all models: cpu, cuda")
    add("--threads", type=positive, default=_USUAL["threads"], help="of torch, for each model")
    add("--dtype", default=_USUAL["dtype"], choices=("bfloat16", "float32"))
    llama.add_options(add)
    add("--resume", action="store_true", help="go on with --output where it was cut")
    extended: Any = {"nargs": "+", "action": "extend", "default": []}
    add("--set", **extended, metavar="NAME=VALUE", help="terms of a trial")
    add("--config", type=Path, help="a Serve config file for a trial, in place of its own")
    add("--url", action="append", help="of a service that runs, if NAME can ask one")
    add("--output", type=output_file, help="JSON file for the record; a picture goes next to it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
