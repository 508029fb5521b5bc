"""The study of a pair: what speculation brings for a target, its drafts and your prompts, and why.

    python -m loadtest.study --target models/demo/target --draft models/demo/draft --output DIR
    python -m loadtest.study --target DIR --draft DIR --draft DIR2 --prompts FILE --output DIR
    python -m loadtest.study --target DIR --draft ngram --prompts kinds --output DIR
    python -m loadtest.study --theory 0.8 0.1 5 [--picture FILE.png]

Measures acceptance by task and temperature, the cost ratio, and speed against k next to theory. It
finds the batch at which drafting stops paying, and the gain of short and long answers. It measures
the cost and the gain of a JSON schema, and the worth of each part of the engine. DIR gets
study.json, pictures and report.md, written again after every part. A run that is cut, or that ends
after `--seconds`, goes on where it stopped when it is given again.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.frame.prompts import load_prompts
from loadtest.report.machine import ROOT
from loadtest.study.findings import chosen_draft, findings_of
from loadtest.study.page import write_page
from loadtest.study.plot import draw_theory
from loadtest.study.record import Record
from loadtest.study.sections import acceptance, costs, speed
from loadtest.study.settings import Settings, model_label
from loadtest.study.theory import step_share, theory_lines
from loadtest.study.world import World

SECTIONS = ("acceptance", "speedup", "batch", "lengths", "structure", "ablation")
_DEMO = ROOT / "models" / "demo"
_MOST_K = 64
# These options choose what to run now; they do not change a measurement.
_PASSING = ("--sections", "--seconds")

Part = tuple[str, Callable[[World], dict[str, Any]]]


def parts_to_measure(
    sections: Sequence[str], settings: Settings, tasks: Sequence[str], draft: str
) -> list[Part]:
    """Names and measurements; `draft` is the one of sections that study one draft only."""
    parts: list[Part] = []
    pairs = [(of, task) for of in settings.drafts for task in tasks]
    if "acceptance" in sections:
        parts += [
            (f"acceptance/{of}/{task}", partial(acceptance.measure, draft=of, task=task))
            for of, task in pairs
        ]
    if "speedup" in sections:
        parts += [
            (f"costs/{of}", partial(costs.measure, draft=of, batch=1)) for of in settings.drafts
        ]
        parts += [
            (f"speedup/{of}/{task}", partial(speed.by_k, draft=of, task=task)) for of, task in pairs
        ]
    if "batch" in sections:
        parts += [
            (f"batch/{draft}/{batch}", partial(speed.by_batch, draft=draft, batch=batch))
            for batch in settings.batch
        ]
    if "lengths" in sections:
        parts += [
            (f"lengths/{draft}/{length}", partial(speed.by_length, draft=draft, length=length))
            for length in settings.lengths
        ]
    if "structure" in sections:
        parts.append((f"structure/{draft}", partial(speed.structure, draft=draft)))
    if "ablation" in sections:
        parts.append((f"ablation/{draft}", partial(speed.ablation, draft=draft)))
    return parts


def measure(record: Record, world: World, sections: Sequence[str], seconds: float) -> bool:
    """Measure the parts that are missing, until all are there or the time is over.

    Returns:
        Whether all are there.
    """
    ends_at = time.monotonic() + seconds
    several = [name for name in SECTIONS[:2] if name in sections]
    single = [name for name in SECTIONS[2:] if name in sections]
    for some in (several, single):  # which draft the others study is known after the first
        draft = chosen_draft(record.content)
        for name, run in parts_to_measure(some, world.settings, world.tasks, draft):
            if name in record.parts:
                continue
            if time.monotonic() >= ends_at:
                print(f"{name} and what comes after it are left for the next run", flush=True)
                return False
            print(f"{name} ...", end=" ", flush=True)
            record.run(name, partial(run, world))
            print(f"{record.parts[name]['seconds']:.1f} s", flush=True)
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Study from the command line; exit status 3: some parts are left for the next run."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    arguments = parser.parse_args(words)
    logging.getLogger("models").setLevel(logging.ERROR)
    try:
        if arguments.theory is not None:
            print(*_theory(arguments.theory, arguments.picture), sep="\n")
            return 0
        if arguments.picture is not None:
            raise ValueError("picture is of --theory; a study draws its own into --output")
        return _study(arguments, words)
    except ValueError as error:
        parser.error(str(error))


def _study(arguments: argparse.Namespace, words: list[str]) -> int:
    label, target = model_label(arguments.target)
    if target is None:
        raise ValueError("target must be a checkpoint folder, ngram drafts only")
    drafts = dict(model_label(text) for text in arguments.draft or [str(_DEMO / "draft")])
    if len(drafts) < len(arguments.draft or ()):
        raise ValueError(f"drafts must have different labels, got {', '.join(arguments.draft)}")
    settings = Settings.of(arguments, label, list(drafts))
    prompts = load_prompts(arguments.prompts, settings.num_prompts, settings.seed, settings.tasks)
    record = Record(arguments.output, _lasting(words), settings)
    with ExitStack() as stack:
        world = World(settings=settings, target=target, drafts=drafts, prompts=prompts, stack=stack)
        is_whole = measure(record, world, arguments.sections, arguments.seconds)
    record.conclude(findings_of(record.content))
    page = write_page(record.content, arguments.output)
    print(f"written: {page}")
    return 0 if is_whole else 3


def _theory(values: Sequence[str], picture: Path | None) -> list[str]:
    try:
        acceptance_rate, cost, k = float(values[0]), float(values[1]), int(values[2])
    except ValueError as error:
        raise ValueError(f"theory wants numbers a and c and a whole number k: {error}") from error
    lines = list(theory_lines(acceptance_rate, cost, k))
    if picture is not None:
        draw_theory(step_share(cost), picture)
        lines += ["", f"written: {picture}"]
    return lines


def _lasting(words: Sequence[str]) -> list[str]:
    """Return the words without those that only say which parts to run now."""
    kept: list[str] = []
    is_passing = False
    for word in words:
        if word.startswith("--"):
            is_passing = word.partition("=")[0] in _PASSING
        if not is_passing:
            kept.append(word)
    return kept


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.study", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument(
        "--theory",
        nargs=3,
        metavar=("a", "c", "k"),
        help="only calculate: acceptance; a draft step over a target pass, or above 1 the other "
        "way round; k",
    )
    parser.add_argument(
        "--picture", type=Path, help="of --theory: speed-up and tokens over acceptance, k = 2 to 10"
    )
    parser.add_argument(
        "--target",
        default=str(_DEMO / "target"),
        metavar="[LABEL=]DIR",
        help="checkpoint folder; default: the demo's",
    )
    parser.add_argument(
        "--draft",
        action="append",
        metavar="[LABEL=]DIR",
        help="a checkpoint with the target's tokenizer, or ngram (prompt lookup); may be repeated; "
        "default: the demo's",
    )
    parser.add_argument(
        "--prompts",
        default="demo",
        help="JSON lines with task, prompt or messages, and schema if any; or a set: demo, kinds",
    )
    parser.add_argument("--tasks", nargs="+", help="of the prompts; default: all")
    parser.add_argument("--output", type=Path, default=Path("study"), help="folder")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument(
        "--seconds", type=_positive_float, default=float("inf"), help="begin no part after these"
    )
    parser.add_argument("--quick", action="store_true", help="little of everything, to try it")
    parser.add_argument("--temperatures", type=_temperature, nargs="+", help="of acceptance")
    parser.add_argument("--temperature", type=_temperature, default=0.7, help="of all speeds")
    parser.add_argument("--k", type=_length, nargs="+", help="draft tokens per round")
    parser.add_argument("--batch", type=_positive, nargs="+", help="requests at a time")
    parser.add_argument("--lengths", type=_positive, nargs="+", help="tokens of an answer")
    parser.add_argument("--tokens", type=_positive, help="of an answer elsewhere, at most")
    parser.add_argument("--num-prompts", type=_positive, help="of each task, at most")
    parser.add_argument("--repeats", type=_positive, help="of each way, by turns")
    parser.add_argument("--pass-repeats", type=_positive, help="of each pass, by turns")
    parser.add_argument("--device", default="cpu", help="torch device: cpu, cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=_positive, default=1, help="of a pass on a CPU")
    parser.add_argument("--seed", type=int, default=7)
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _length(text: str) -> int:
    value = _positive(text)
    if value > _MOST_K:
        raise argparse.ArgumentTypeError(f"must be at most {_MOST_K}, got {value}")
    return value


def _positive_float(text: str) -> float:
    value = _number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text!r}")
    return value


def _temperature(text: str) -> float:
    value = _number(text)
    if not 0.0 <= value <= 2.0:
        raise argparse.ArgumentTypeError(f"must be within 0 to 2, got {text!r}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None


if __name__ == "__main__":
    sys.exit(main())
