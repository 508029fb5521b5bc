"""llama.cpp beside ours: the same prompts, models and threads, in one run, by turns.

    python -m loadtest.peer --llama-server build/bin/llama-server --gguf-folder gguf \\
        --convert-script llama.cpp/convert_hf_to_gguf.py --target smollm2-135m-instruct \\
        --output results/peer.json

Both read the same weights in bfloat16. Ours reads the checkpoint's folder, and llama.cpp
target.gguf (and draft.gguf) in `--gguf-folder`, which are made if they are missing. Prompts go out
as token ids and are answered greedily. Part `engine` compares times inside (ours without links and
HTTP, llama-server by its own timings). Part `http` compares both over HTTP by the client's clock.
Ours is measured alone if the binary is not there, and the file says so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.peer.comparison import PeerBench
from loadtest.peer.llama import LOOKUPS
from router.drafters.registry import DRAFTERS

_TASKS = Path(__file__).with_name("tasks.json")
_PARTS = ("engine", "http")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the comparison from the command line."""
    words = sys.argv[1:] if argv is None else argv
    parser = _parser()
    arguments = parser.parse_args(words)
    try:
        bench = PeerBench(arguments, words)
    except ValueError as error:
        parser.error(str(error))
    for threads in arguments.threads:
        for where in arguments.parts:
            bench.measure(where, threads)
    bench.finish()


def _named_options(text: str) -> tuple[str, str]:
    name, equals, options = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=OPTIONS, got {text!r}")
    return name, options


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.peer",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    add = parser.add_argument
    add("--target", default="smollm2-135m-instruct", help="checkpoint folder or a fetched model")
    add("--draft", help="checkpoint folder of a draft model; default: none, prompt lookup drafts")
    add("--llama-server", type=Path, help="llama.cpp's server; without it ours is measured alone")
    add("--gguf-folder", type=Path, default=Path("gguf"), help="of target.gguf and draft.gguf")
    add("--convert-script", type=Path, help="llama.cpp's convert_hf_to_gguf.py, to make them")
    add("--llama-lookups", nargs="*", choices=list(LOOKUPS), help="n-gram kinds; default: all")
    add(
        "--llama-way",
        action="append",
        type=_named_options,
        default=[],
        metavar="NAME=OPTIONS",
        help="a further way of llama-server by its own options; may be given several times",
    )
    add("--drafters", nargs="+", choices=list(DRAFTERS), help="of ours; default: as it chooses")
    add("--k", type=int, nargs="+", default=[3, 5, 8], help="fixed k, for all that draft so")
    add("--assisted", type=int, nargs="*", default=[], help="k of transformers; 0: its heuristic")
    add("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    add("--threads", type=_positive, nargs="+", default=[1, 2], help="of both sides")
    add("--task-file", type=Path, default=_TASKS, help="JSON: tasks and their prompts")
    add("--tasks", nargs="+", help="of that file; default: all")
    add("--prompts", type=_positive, default=3, help="of each task, at most")
    add("--tokens", type=_positive, default=96, help="of each answer, at most")
    add("--repeats", type=_positive, default=2, help="runs of each line, by turns")
    add("--output", type=Path, help="JSON file, written after every task")
    add("--add", action="store_true", help="keep the lines of the file, and add these runs")
    return parser


if __name__ == "__main__":
    main()
