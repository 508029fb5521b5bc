"""Ask a GPU all that no machine without one can say, and write one report: its first hour.

python -m loadtest.gpu_day --output gpu-day

Each part runs in a process of its own with a limit. So a part that fails, hangs or brings the
device down leaves the others alone. The same parts run against stand-ins on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from loadtest.gpu_day.parts import PARTS, Part
from loadtest.gpu_day.random_pair import PAIRS, make_random_pair
from loadtest.gpu_day.report import report
from loadtest.gpu_day.terms import Terms
from loadtest.report.machine import ROOT
from loadtest.report.record import head, write_json

_KEPT_LINES = 12  # lines of a failed part's output
_STOP_TIMEOUT_S = 90.0  # a service that a part has started takes up to 60

Found = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts from the command line; exit status 1: one of them did not end well."""
    words = sys.argv[1:] if argv is None else argv
    parser = _parser()
    arguments = parser.parse_args(words)
    folder: Path = arguments.output
    try:
        terms = _terms(arguments)
    except ValueError as error:
        parser.error(str(error))
    parts: dict[str, Found] = {}
    record = head("python -m loadtest.gpu_day", words, vars(arguments)) | {"parts": parts}
    for name in arguments.parts:
        print(f"{name}: {PARTS[name].question}?", flush=True)
        parts[name] = _found(name, PARTS[name], terms, arguments.limit_scale)
        write_json(folder / "record.json", record)
        (folder / "report.md").write_text(report(record), encoding="utf-8")
        print(f"{name}: {parts[name]['status']} {parts[name].get('why', '')}", flush=True)
    print(f"report: {folder / 'report.md'}")
    return int(any(part["status"] in ("failed", "timed out") for part in parts.values()))


def _terms(arguments: argparse.Namespace) -> Terms:
    """Return the terms for the parts; a random pair is made once and kept in the folder.

    Raises:
        ValueError: there is no such device or pair.
    """
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {arguments.device}: torch finds no GPU here")
    folder: Path = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    pair = Path(arguments.pair)
    if arguments.pair in PAIRS:
        pair = folder / "pair" / arguments.pair
        if not (pair / "draft" / "config.json").is_file():
            print(f"making a random pair {arguments.pair}", flush=True)
            # What a process has held on a card goes back when it ends.
            with ProcessPoolExecutor(1, get_context("spawn")) as aside:
                aside.submit(make_random_pair, arguments.pair, pair, device=device.type).result()
    elif not (pair / "target" / "config.json").is_file():
        known = ", ".join(PAIRS)
        raise ValueError(
            f"--pair must be one of {known} or a folder of a pair, got {arguments.pair!r}"
        )
    return Terms(
        pair=pair.resolve(),
        device=arguments.device,
        repeats=arguments.repeats,
        folder=folder.resolve(),
    )


def _found(name: str, part: Part, terms: Terms, limit_scale: float) -> Found:
    """Run a part and return its end: done, or skipped, failed or timed out with a reason."""
    num_cards = terms.num_cards()
    why = ""
    if num_cards < part.num_cards:
        why = f"it needs {part.num_cards} cards, there are {num_cards}"
    elif part.package and find_spec(part.package) is None:
        why = f"it needs {part.package}, which is not installed"
    if why:
        return {"status": "skipped", "why": why, "elapsed_s": 0.0}
    began_s = time.perf_counter()
    found = _run(name, terms, part.limit_s * limit_scale)
    return found | {"elapsed_s": round(time.perf_counter() - began_s, 1)}


def _run(name: str, terms: Terms, limit_s: float) -> Found:
    answer, log = (terms.folder / f"{name}.{end}" for end in ("json", "log"))
    answer.unlink(missing_ok=True)
    words = [sys.executable, "-m", "loadtest.gpu_day.part", name, terms.to_json(), str(answer)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return {"status": "timed out", "why": f"after {limit_s:g} s; {_last(log)}"}
    if status != 0 or not answer.is_file():
        return {"status": "failed", "why": f"exit status {status}; {_last(log)}"}
    return {"status": "done", "answer": _answer(answer)}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part and all that it started."""
    os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):  # nobody is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_STOP_TIMEOUT_S)


def _answer(path: Path) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return answer


def _last(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_KEPT_LINES:]
    return f"{log.name} ends with: " + " / ".join(line.strip() for line in lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.gpu_day",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument(
        "--pair",
        default="llama-8b",
        help=f"one of {', '.join(PAIRS)}, made with random weights, or a folder with target and "
        "draft; default: llama-8b, which needs 24 GB",
    )
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a try with stand-ins")
    parser.add_argument(
        "--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="default: all"
    )
    parser.add_argument("--repeats", type=int, default=5, help="turns of each line")
    parser.add_argument(
        "--limit-scale",
        type=float,
        default=1.0,
        help="times the limit of each part, for slow disks",
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of report and logs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
