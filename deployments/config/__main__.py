"""`python -m deployments.config --check FILE`: explains a Serve config of ours, and checks it.

It also takes vLLM's words in place of a file, and writes the file that they mean:

    python -m deployments.config --model MODEL --speculative-config JSON --output mine.yaml

`--keys` writes the reference page of all keys.

The findings that need no torch are said first. The command ends there if they refuse the config.
Sizes are computed only of models whose files are here. Exit status 0: it could be served here.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from deployments.config.check import examine, sentence
from deployments.config.cluster import Cluster, connected_cluster, this_machine
from deployments.config.explain import explanation
from deployments.config.keys import assignments
from deployments.config.reference import keys_page
from deployments.config.serve_file import ServeFile, one_line, read_serve_file, read_serve_text
from deployments.config.vllm.command import add_words, asked_words, serve_page
from models.arguments import output_file


def look_at(address: str) -> tuple[Cluster, Callable[[], None]]:
    """Return this machine ("local") or the cluster at `address`, and what to call in the end."""
    if address == "local":
        return this_machine(), lambda: None
    import ray

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    return connected_cluster(is_elsewhere=True), ray.shutdown


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = _parser()
    options = parser.parse_args(argv)
    words = asked_words(options)
    if options.keys:
        if words or options.file is not None:
            parser.error("--keys goes with --output only")
        _write(keys_page(), options.output)
        return 0
    name = f"--model {words['model']}" if "model" in words else str(options.file)
    try:
        if words:
            text = _words_page(parser, options, words, argv)
            served = read_serve_text(text, assignments(options.changes))
        elif options.file is None:
            parser.error("give a Serve config file, or --model and vLLM's other words")
        else:
            text, served = "", read_serve_file(options.file, assignments(options.changes))
    except ValueError as error:
        return _refuse(f"{name}: {error}")
    if not text or options.changes:
        text = yaml.safe_dump(served.tree, sort_keys=False)
    if options.output is not None or (words and not options.check):
        _write(text, options.output)
    if options.check:
        return _check(served, options.address, name)
    if options.output is None and not words:
        _say([f"{name}: its keys are right; --check says if it can be served here"])
    return 0


def _words_page(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    words: dict[str, Any],
    argv: Sequence[str],
) -> str:
    """Return the text of the config file that vLLM's words make."""
    if "model" not in words:
        parser.error(f"--{next(iter(words)).replace('_', '-')}: goes with --model only")
    if options.file is not None:
        if "=" not in str(options.file):
            parser.error("give a file or --model, not both")
        options.changes.insert(0, str(options.file))
    return serve_page(words, argv)


def _check(served: ServeFile, address: str, name: str) -> int:
    """Say whether a file could be served; the exit status."""
    try:
        cluster, leave = look_at(address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        return _refuse(f"--address {address}: no Ray cluster: {one_line(error)}")
    try:
        findings = examine(served, cluster)
    finally:
        leave()
    lines = explanation(served.config, served.placements, findings.sizes, findings.unknown)
    where = "this machine" if address == "local" else f"the cluster at {address}"
    _say([f"{name}, for {where}:", *lines, *(f"note: {one}" for one in findings.notes)])
    if findings.refusals:
        return _refuse(f"{name} {sentence(findings.refusals, served.placements, cluster)}")
    host, port = served.http
    _say([f"ok: it can be served here, on {host}:{port}"])
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deployments.config",
        description="Explain and check a Serve config file of Outrider, or write a changed one, or "
        "one made of vLLM's words.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "file", type=Path, nargs="?", help="a Serve config file, like configs/demo.yaml"
    )
    parser.add_argument(
        "changes",
        nargs="*",
        metavar="KEY=VALUE",
        help="changes made first: target.max_num_seqs=8, Draft.num_replicas=2, http_options.port=1",
    )
    parser.add_argument("--check", action="store_true", help="say whether it could be served here")
    parser.add_argument(
        "--address",
        default=os.environ.get("RAY_ADDRESS", "local"),
        help="the Ray cluster to look at (auto: the one running here); default: RAY_ADDRESS, else "
        "local: this machine alone",
    )
    parser.add_argument("--keys", action="store_true", help="print the page of all keys instead")
    parser.add_argument(
        "--output", type=output_file, help="write the changed file here, for `serve run`"
    )
    add_words(parser)
    return parser


def _write(text: str, path: Path | None) -> None:
    """Write a text to a file, or print it."""
    if path is None:
        _say(text.splitlines())
    else:
        path.write_text(text, encoding="utf-8")


def _say(lines: Sequence[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _refuse(message: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
