"""`python -m loadtest NAME` runs an experiment; `--list` names them all.

    python -m loadtest --list
    python -m loadtest forced --output forced.json
    python -m loadtest study --target DIR --draft DIR --prompts FILE --output study.json
    python -m loadtest --theory 0.8 0.1 5

The ways of an experiment run by turns. It prints a table and its claims. It ends with 1 if a text
depended on the way. `--output` keeps the record, with a picture beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.experiments.registry import EXPERIMENTS
from loadtest.frame.claims import summary
from loadtest.frame.expected import advice, beside_theory, theory_table
from loadtest.frame.experiment import Cell, Experiment, Result, measure, table
from loadtest.frame.pairs import find_models
from loadtest.frame.picture import draw
from loadtest.frame.record import read_result, rows_to_go_on, write_result
from loadtest.frame.stages import Models, Opener
from loadtest.frame.theory import draw_theory, step_share, theory_lines
from loadtest.frame.workloads import by_task
from loadtest.report.record import SAMPLES


def _opener(name: str) -> Opener:
    """Return what opens a stage; its modules are loaded when it is opened."""

    def opened(models: Models) -> Any:
        if name == "engine":
            from loadtest.frame.stages import EngineStage

            return EngineStage(models)
        if name == "link":
            from loadtest.frame.links import LinkStage

            return LinkStage(models)
        from loadtest.frame.services import ServiceStage

        return ServiceStage(models)

    return opened


STAGES: Mapping[str, Opener] = {name: _opener(name) for name in ("engine", "link", "http")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run an experiment from the command line; return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    arguments = parser.parse_args(words)
    if arguments.list:
        _print_list()
        return 0
    if arguments.summary:
        _print_summary(arguments.summary)
        return 0
    if arguments.theory is not None:
        try:
            _print_theory(arguments.theory, arguments.output)
        except ValueError as error:
            parser.error(f"--theory: {error}")
        return 0
    if arguments.name is None:
        parser.error("an experiment is needed; --list names them")
    try:
        experiment, models = _chosen(arguments)
        settings = vars(arguments) | {"pair": models.label}
        known = rows_to_go_on(arguments.output, settings) if arguments.resume else []
        keep = partial(_keep, arguments.output, words, settings, experiment)
        result = measure(experiment, models, STAGES, keep, known)
    except ValueError as error:
        parser.error(str(error))
    return _reported(experiment, result, arguments.output, keep)


def _reported(
    experiment: Experiment, result: Result, output: Path | None, keep: Callable[[Result], None]
) -> int:
    keep(result)
    for line in table(result.rows, experiment.base):
        print(line)
    theory = beside_theory(result.rows, experiment.ways)
    if theory:
        print("", *theory_table(theory), "", *advice(result.rows, experiment.base), sep="\n")
    for claim in result.claims(experiment.goals):
        print(claim)
    if len(experiment.places()) > 1:
        print(*summary(result.rows), sep="\n")
    for problem in result.problems:
        print(f"VIOLATED: {problem}")
    if output is not None:
        draw(result.rows, output.with_suffix(".png"))
    return 1 if result.problems else 0


def _keep(
    path: Path | None,
    words: Sequence[str],
    settings: Mapping[str, object],
    experiment: Experiment,
    result: Result,
) -> None:
    theory = beside_theory(result.rows, experiment.ways)
    if theory:
        result = replace(result, extra=result.extra | {"theory": theory})
    write_result(path, words, settings, result, result.claims(experiment.goals))


def _chosen(arguments: argparse.Namespace) -> tuple[Experiment, Models]:
    """Return the experiment with the options of the command line, and its models.

    Raises:
        ValueError: an option names something that is not there.
    """
    experiment = EXPERIMENTS[arguments.name]
    if arguments.prompts is not None:
        of_prompts = experiment.of_prompts or partial(by_task, num_prompts=64)
        experiment = replace(experiment, workloads=of_prompts(arguments.prompts))
    models = _models(arguments, experiment)
    experiment = experiment.for_drafts(list(models.drafts))
    if arguments.quick:
        experiment = experiment.quick()
    changes: dict[str, Any] = {
        "workloads": _among("workload", arguments.workload, experiment.workloads),
        "ways": _among("way", arguments.way, experiment.ways),
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


def _print_theory(values: Sequence[float], picture: Path | None) -> None:
    acceptance, cost, k = values
    if not k.is_integer():
        raise ValueError(f"k must be a whole number, got {k:g}")
    print(*theory_lines(acceptance, cost, int(k)), sep="\n")
    if picture is not None:
        draw_theory(step_share(cost), picture)


def _print_summary(paths: Sequence[Path]) -> None:
    """Print adaptive k next to the best fixed k and to plain decoding, over several records."""
    rows = [
        {**row, "workload": f"{record['settings']['pair']}, {row['workload']}"}
        for record in map(read_result, paths)
        for row in record[SAMPLES]
    ]
    print(*summary(rows), sep="\n")


def _print_list() -> None:
    width = max(map(len, EXPERIMENTS))
    for name, experiment in EXPERIMENTS.items():
        print(f"{name:<{width}}  {experiment.question}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("name", nargs="?", choices=sorted(EXPERIMENTS), metavar="NAME", help="of an experiment")
    add("--list", action="store_true", help="name the experiments and their questions")
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
    add("--stage", nargs="+", choices=sorted(STAGES), help="where: engine, link or http")
    add("--workload", nargs="+", help="some of its workloads")
    add("--way", nargs="+", help="some of its ways")
    add("--batch", nargs="+", type=int, help="requests at a time")
    add("--tokens", type=int, help="of each answer, at most")
    add("--count", type=int, help="requests of a run for each place")
    add("--run-s", type=float, help="a run has requests for so long; 0: --count decides")
    add("--repeats", type=int, help="turns")
    add("--warm-s", type=float, help="seconds that a way which learns runs before it counts")
    add("--threads", type=int, default=2, help="of torch, for each model")
    add("--device", default="cpu", help="of torch: cpu, cuda")
    add("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    add("--resume", action="store_true", help="go on with --output where it was cut")
    add("--output", type=Path, help="JSON file for the record; a picture goes next to it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
