"""Look-aheads: what CDSL costs and satisfies beside CDLH and greedy, of any pair and by task.

    python -m loadtest.lookahead compare --pair models/demo --task concepts --output DIR
    python -m loadtest.lookahead compare --pair DIR --paper-thresholds 0.5 1 --output DIR
    python -m loadtest.lookahead thresholds --target DIR --draft DIR --output DIR
    python -m loadtest.lookahead drafts --target DIR --draft 1M=DIR --draft 3M=DIR --output DIR
    python -m loadtest.lookahead tune --pair models/demo --task numeric --prompts 50

Each experiment writes DIR/EXPERIMENT-TASK.json. The picture of all present results, its trade-off
curves among them, is drawn again after each: DIR/lookahead.png. Counts are exact and the same in
every run; speed is measured by turns. Claims are those of the method's paper (2412.10418) for
speed, and what must hold for satisfaction.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadtest.frame.pairs import DEMO, find_pair
from loadtest.lookahead import vary
from loadtest.lookahead.batch import batch
from loadtest.lookahead.compare import Sizes, compare, tables_of
from loadtest.lookahead.drafts import drafts
from loadtest.lookahead.plot import draw
from loadtest.lookahead.runs import Bench, Pair, opened
from loadtest.lookahead.tasks import TASKS, Prompts, Side
from loadtest.lookahead.terms import (
    GAIN,
    PAPER,
    RECOMMENDED,
    add_rule,
    add_weights,
    terms_of,
)
from loadtest.lookahead.tune import Grid, Options, tune
from loadtest.report.readme.lookahead import aim, aims, compared, drafts_table, prices_table
from loadtest.report.record import head, write_json
from models.fetch.known import known_model

Found = dict[str, Any]
_TABLES = (PAPER, GAIN, RECOMMENDED)
_THRESHOLDS = (0.5, 0.5)  # a_t, r_t of the two tables that compare rules


def _compare(bench: Bench, asked: argparse.Namespace) -> Found:
    tables = tables_of(terms_of(asked), asked.paper_thresholds, asked.gain_thresholds)
    speed_prompts = min(asked.speed_prompts, asked.prompts)
    return compare(
        bench,
        _drawn(asked, "held-out"),
        {name: tables[name] for name in asked.tables},
        Sizes(speed_prompts=speed_prompts, repeats=asked.repeats),
    )


def _thresholds(bench: Bench, asked: argparse.Namespace) -> Found:
    return vary.thresholds(
        bench,
        _drawn(asked, "validation"),
        terms_of(asked),
        accept=asked.accept_thresholds,
        reward=asked.reward_thresholds,
    )


def _verification(bench: Bench, asked: argparse.Namespace) -> Found:
    terms = replace(terms_of(asked), temperature=asked.temperature)
    found = {}
    for name, task in TASKS.items():
        prompts = task.draw("validation", asked.prompts, asked.at_once)
        found[name] = vary.verification(bench, prompts, terms)
    return {"tasks": found}


def _batch(bench: Bench, asked: argparse.Namespace) -> Found:
    return batch(
        bench,
        _drawn(asked, "held-out"),
        terms_of(asked),
        sizes=sorted(set(asked.sessions)),
        stream_tokens=asked.stream_tokens,
        repeats=asked.repeats,
    )


def _tune(bench: Bench, asked: argparse.Namespace) -> Found:
    grid = Grid(
        lengths=asked.lengths,
        accept_thresholds=asked.accept_thresholds,
        reward_thresholds=asked.reward_thresholds,
        commits=asked.commits,
    )
    options = Options(
        num_prompts=asked.prompts,
        held_out=asked.held_out,
        within=asked.within,
        at_once=asked.at_once,
    )
    return tune(bench, TASKS[asked.task], terms_of(asked), grid, options)


def _drawn(asked: argparse.Namespace, side: Side) -> Prompts:
    return TASKS[asked.task].draw(side, asked.prompts, asked.at_once)


_DRAFTS = "drafts"  # of which each pair is opened by itself
_RUN: Mapping[str, Callable[[Bench, argparse.Namespace], Found]] = {
    "compare": _compare,
    "thresholds": _thresholds,
    "verification": _verification,
    "batch": _batch,
    "tune": _tune,
}
# By the name of the experiment: the words of its help, and the usual number of prompts.
_EXPERIMENTS: Mapping[str, tuple[str, int]] = {
    "compare": ("greedy, CDLH and CDSL with the same commit, on held-out prompts", 100),
    "thresholds": ("a_t and r_t against satisfaction and passes, by both rules", 100),
    "verification": ("hard rejection against sampling, all tasks", 100),
    "batch": ("sessions at once, and an ordinary stream beside them", 16),
    _DRAFTS: ("several drafts of one target", 100),
    "tune": ("pick a_t, r_t, d from validation prompts", 50),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run an experiment from the command line; return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    asked = parser.parse_args(words)
    logging.getLogger("models").setLevel(logging.ERROR)
    try:
        pairs = pairs_of(asked)
        found = _found(pairs, asked)
    except ValueError as error:
        parser.error(str(error))
    _say(asked.experiment, found)
    if asked.output is not None:
        task = "" if asked.experiment == "verification" else f"-{asked.task}"
        path = asked.output / f"{asked.experiment}{task}.json"
        write_json(path, _head(words, asked, pairs[0]) | found)
        draw(asked.output)
        print(f"written: {path}")
    return 0


def _found(pairs: Sequence[Pair], asked: argparse.Namespace) -> Found:
    """Run the experiment that is asked for.

    Raises:
        ValueError: it compares no pairs, and several are given; or its terms contradict each other.
    """
    if asked.experiment == _DRAFTS:
        return drafts(pairs, _drawn(asked, "validation"), terms_of(asked), asked.threads)
    if len(pairs) > 1:
        raise ValueError("one pair at a time: only drafts compares several")
    with opened(pairs[0], asked.threads) as bench:
        return _RUN[asked.experiment](bench, asked)


def pairs_of(asked: argparse.Namespace) -> list[Pair]:
    """Return the pairs of the command line.

    Raises:
        ValueError: a folder has no checkpoint, or there is a target without a draft.
    """
    if asked.target is None:
        if asked.draft:
            raise ValueError("draft: give its target too")
        given = map(find_pair, asked.pair or [DEMO])
        return [Pair(one.label, one.target, one.drafts["draft"]) for one in given]
    if asked.pair or not asked.draft:
        raise ValueError("target: needs a draft beside it, and no pair")
    target, drafts_ = _checkpoint(asked.target), [_labelled(text) for text in asked.draft]
    return [Pair(label, target, draft) for label, draft in drafts_]


def _checkpoint(text: str) -> Path:
    known = known_model(text)
    folder = Path(text) if known is None else known.folder
    if not (folder / "config.json").is_file():
        raise ValueError(f"{text!r} has no config.json")
    return folder


def _labelled(text: str) -> tuple[str, Path]:
    label, _, folder = text.rpartition("=")
    path = _checkpoint(folder)
    return label or path.resolve().name, path


def _head(words: list[str], asked: argparse.Namespace, pair: Pair) -> Found:
    settings = {key: value for key, value in vars(asked).items() if key not in ("pair", "draft")}
    settings |= pair.described()
    if asked.target is not None:
        settings["target"] = pair.target.resolve().name
    return head("python -m loadtest.lookahead", words, settings)


def _say(experiment: str, found: Found) -> None:
    if experiment == "compare":
        print(compared(found), "", aims(found), sep="\n")
    elif experiment == _DRAFTS:
        print(drafts_table(found), "", prices_table(found), sep="\n")
    else:
        _say_lines(found)


def _say_lines(found: Found) -> None:
    for line in _lines_of(found):
        print(json.dumps({key: value for key, value in line.items() if key not in _BY_PROMPT}))
    for claim in found.get("claims", ()):
        print(aim(claim))
    for name, part in found.get("tasks", {}).items():
        print(name, json.dumps(part["sampling_less_hard"]))
    if "lookahead" in found:
        print('"lookahead":', json.dumps(found["lookahead"] | {"reward": "..."}))
        print("on validation:", json.dumps(found["expected"]))
        held = found["held_out"]
        print(
            f"held out: hard {held['cdsl']['hard']['value']:.2f}, of cdlh "
            f"{held['cdlh']['hard']['value']:.2f}; cost {held['cost']:.2f} passes a token, of cdlh "
            f"{held['cost_of_cdlh']:.2f}"
        )


def _lines_of(found: Found) -> list[Found]:
    by_rule = ([part["cdlh"], *part["lines"]] for part in found.get("rules", {}).values())
    return [*found.get("lines", ()), *(line for lines in by_rule for line in lines)]


_BY_PROMPT = ("met", "tokens_of_each", "passes_of_each", "steps_of_each")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.lookahead",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    kinds = parser.add_subparsers(dest="experiment", required=True)
    for name, (says, num_prompts) in _EXPERIMENTS.items():
        kind = kinds.add_parser(name, help=says)
        _add_common(kind, num_prompts)
        add_weights(kind)
        _MORE.get(name, lambda kind: None)(kind)
    return parser


def _add_common(kind: argparse.ArgumentParser, num_prompts: int) -> None:
    kind.add_argument("--pair", action="append", metavar="[LABEL=]DIR", help="target/ and draft/")
    kind.add_argument("--target", metavar="DIR", help="checkpoint, or the name of a fetched model")
    kind.add_argument(
        "--draft",
        action="append",
        metavar="[LABEL=]DIR",
        help="beside --target; for drafts several",
    )
    kind.add_argument("--task", choices=tuple(TASKS), default="concepts")
    kind.add_argument("--prompts", type=int, default=num_prompts)
    kind.add_argument("--at-once", type=int, default=8, help="answers at a time, where it's counts")
    kind.add_argument("--threads", type=int, default=2)
    kind.add_argument("--output", type=Path, help="folder of the results")


def _add_turns(kind: argparse.ArgumentParser) -> None:
    kind.add_argument("--repeats", type=int, default=3, help="of each way, by turns")


def _add_grid(kind: argparse.ArgumentParser) -> None:
    kind.add_argument("--accept-thresholds", type=float, nargs="+", default=[0.0, 0.25, 0.5])
    kind.add_argument("--reward-thresholds", type=float, nargs="+", default=[0.0, 0.4, 0.7, 1.0])


def _add_compare(kind: argparse.ArgumentParser) -> None:
    _add_turns(kind)
    kind.add_argument("--speed-prompts", type=int, default=8, help="one at a time; 0: no speed")
    kind.add_argument("--tables", nargs="+", choices=_TABLES, default=_TABLES)
    for name in ("paper", "gain"):
        kind.add_argument(
            f"--{name}-thresholds",
            type=float,
            nargs=2,
            default=_THRESHOLDS,
            metavar=("A_T", "R_T"),
            help=f"of the table {name}",
        )


def _add_verification(kind: argparse.ArgumentParser) -> None:
    add_rule(kind)
    kind.add_argument("--temperature", type=_temperature, default=0.7)


def _temperature(text: str) -> float:
    if (value := float(text)) <= 0.0:
        raise argparse.ArgumentTypeError(
            f"must be above 0, because greedy texts have one rule, hard (got {text})"
        )
    return value


def _add_batch(kind: argparse.ArgumentParser) -> None:
    add_rule(kind)
    _add_turns(kind)
    kind.add_argument("--sessions", type=int, nargs="+", default=[1, 2, 4, 8])
    kind.add_argument("--stream-tokens", type=int, default=96, help="of the ordinary stream")


def _add_tune(kind: argparse.ArgumentParser) -> None:
    add_rule(kind)
    _add_grid(kind)
    kind.add_argument("--lengths", type=int, nargs="+", default=[4, 8])
    kind.add_argument("--commits", nargs="+", default=["token", "gain", "rollout"])
    kind.add_argument("--held-out", type=int, default=100, help="prompts of the check")
    kind.add_argument("--within", type=float, default=0.03, help="of CDLH's hard satisfaction")


_MORE: Mapping[str, Callable[[argparse.ArgumentParser], None]] = {
    "compare": _add_compare,
    "thresholds": _add_grid,
    "verification": _add_verification,
    "batch": _add_batch,
    _DRAFTS: add_rule,
    "tune": _add_tune,
}


if __name__ == "__main__":
    sys.exit(main())
