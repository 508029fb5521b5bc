"""`python -m loadtest NAME` runs an experiment; `--list` names them all.

    python -m loadtest --list
    python -m loadtest forced --output forced.json
    python -m loadtest speed --target DIR --draft DIR --prompts FILE

The ways of an experiment run by turns. It prints a table and its claims. It ends with 1 if a text
depended on the way. `--output` keeps the record, with a picture beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from loadtest.experiments.registry import EXPERIMENTS
from loadtest.frame import llama
from loadtest.frame.experiment import Experiment, Result, measure, table
from loadtest.frame.pairs import find_models
from loadtest.frame.picture import draw
from loadtest.frame.record import rows_to_go_on, write_result
from loadtest.frame.stages import Models, Opener
from loadtest.frame.workloads import by_task


def _opener(module: str, name: str) -> Opener:
    """Return what opens a stage; its module is loaded when it is opened."""

    def opened(models: Models) -> Any:
        return getattr(import_module(f"loadtest.frame.{module}"), name)(models)

    return opened


STAGES: Mapping[str, Opener] = {
    "engine": _opener("stages", "EngineStage"),
    "link": _opener("links", "LinkStage"),
    "http": _opener("services", "ServiceStage"),
    "bare": _opener("references", "BareStage"),
    "transformers": _opener("references", "TransformersStage"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run an experiment from the command line; return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    arguments = parser.parse_args(words)
    if arguments.list:
        _print_list()
        return 0
    if arguments.name is None:
        parser.error("an experiment is needed; --list names them")
    try:
        experiment, models = _chosen(arguments)
        settings = vars(arguments) | {"pair": models.label}
        openers = {**STAGES, **llama.openers(arguments)}
        experiment, settings["skipped"] = _with_stages(experiment, openers)
        known = rows_to_go_on(arguments.output, settings) if arguments.resume else []
        keep = partial(_keep, arguments.output, words, settings, experiment)
        result = measure(experiment, models, openers, keep, known)
    except ValueError as error:
        parser.error(str(error))
    return _reported(experiment, result, arguments.output, keep)


def _with_stages(
    experiment: Experiment, openers: Mapping[str, Opener]
) -> tuple[Experiment, list[str]]:
    """Return the experiment with the ways that can be run here, and the names of the others."""
    skipped = [name for name, way in experiment.ways.items() if way.at and way.at not in openers]
    if skipped:
        print(f"not run, as their programs are not given: {', '.join(skipped)}")
    ways = {name: way for name, way in experiment.ways.items() if name not in skipped}
    return replace(experiment, ways=ways), skipped


def _reported(
    experiment: Experiment, result: Result, output: Path | None, keep: Callable[[Result], None]
) -> int:
    keep(result)
    for line in table(result.rows, experiment.base):
        print(line)
    for row in result.rows:
        for like, share in row.get("alike", {}).items():
            print(f"{row['workload']}: {share:.0%} of {row['way']}'s texts are as {like}'s begin")
    for claim in result.claims(experiment.goals):
        print(claim)
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
    write_result(path, words, settings, result, result.claims(experiment.goals))


def _chosen(arguments: argparse.Namespace) -> tuple[Experiment, Models]:
    """Return the experiment with the options of the command line, and its models.

    Raises:
        ValueError: an option names something that is not there.
    """
    experiment = EXPERIMENTS[arguments.name]
    if arguments.prompts is not None:
        if not experiment.workloads:
            raise ValueError(f"--prompts: {arguments.name} asks for no prompts")
        experiment = replace(experiment, workloads=by_task(arguments.prompts, num_prompts=64))
    experiment = llama.with_ways(experiment, arguments.llama_way)
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
    for name in ("tokens", "count", "repeats", "warm_s"):
        changes[name] = getattr(arguments, name)
    for name, given in (("stages", arguments.stage), ("batches", arguments.batch)):
        changes[name] = None if given is None else tuple(given)
    experiment = replace(
        experiment, **{name: value for name, value in changes.items() if value is not None}
    )
    models = _models(arguments, experiment)
    engine = {
        "dtype": "bfloat16",
        "device": arguments.device,
        "num_threads": arguments.threads,
        **experiment.engine,
    }
    most = max(experiment.batches)
    engine.setdefault("max_model_len", 512)
    engine.setdefault("kv_cache_tokens", (most + 1) * engine["max_model_len"])
    return experiment, replace(models, engine=engine, router=experiment.router)


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
    add("--quick", action="store_true", help="the smallest form that runs every part")
    add("--pair", help="demo, smollm2, a grown pair's name, or [LABEL=]DIR with target/ and draft/")
    add("--target", help="folder of your own target, in place of --pair")
    add("--draft", action="append", help="folder of a draft model for it; may be given again")
    add("--prompts", help="a file of your own prompts, a JSON object a line; or demo, kinds")
    add("--stage", nargs="+", choices=("engine", "link", "http"), help="where")
    add("--workload", nargs="+", help="some of its workloads")
    add("--way", nargs="+", help="some of its ways")
    add("--batch", nargs="+", type=int, help="requests at a time")
    add("--tokens", type=int, help="of each answer, at most")
    add("--count", type=int, help="requests of a run for each place")
    add("--repeats", type=int, help="turns")
    add("--warm-s", type=float, help="seconds that a way which learns runs before it counts")
    add("--device", default="cpu", help="torch device of all models: cpu, cuda")
    add("--threads", type=int, default=2, help="of torch, for each model")
    llama.add_options(add)
    add("--resume", action="store_true", help="go on with --output where it was cut")
    add("--output", type=Path, help="JSON file for the record; a picture goes next to it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
