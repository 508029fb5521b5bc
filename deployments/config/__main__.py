"""`python -m deployments.config --check FILE`: explains a Serve config of ours, and checks it.

What can be known without loading torch is said first; a config that is refused for that ends there.
Only of models whose files are here are sizes computed. Exit status 0: it could be served here.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from deployments.config.check import examine, sentence
from deployments.config.cluster import Cluster, connected_cluster, this_machine
from deployments.config.explain import explanation
from deployments.config.keys import assignments
from deployments.config.serve_file import one_line, read_serve_file


def look_at(address: str) -> tuple[Cluster, Callable[[], None]]:
    """This machine ("local") or the cluster at `address`, and what to call in the end."""
    if address == "local":
        return this_machine(), lambda: None
    import ray

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    return connected_cluster(is_elsewhere=True), ray.shutdown


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    options = _parser().parse_args(argv)
    try:
        served = read_serve_file(options.file, assignments(options.changes))
    except ValueError as error:
        return _refuse(f"{options.file}: {error}")
    if options.output is not None:
        text = yaml.safe_dump(served.tree, sort_keys=False)
        options.output.write_text(text, encoding="utf-8")
    if not options.check:
        _say([f"note: {one}" for one in served.renamed])
        return 0
    try:
        cluster, leave = look_at(options.address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        return _refuse(f"--address {options.address}: no Ray cluster: {one_line(error)}")
    try:
        findings = examine(served, cluster)
    finally:
        leave()
    lines = explanation(served.config, served.placements, findings.sizes, findings.unknown)
    where = "this machine" if options.address == "local" else f"the cluster at {options.address}"
    _say([f"{options.file}, for {where}:", *lines, *(f"note: {one}" for one in findings.notes)])
    if findings.refusals:
        return _refuse(f"{options.file} {sentence(findings.refusals, served.placements, cluster)}")
    host, port = served.http
    _say([f"ok: it can be served here, on {host}:{port}"])
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deployments.config",
        description="Explain and check a Serve config file of Outrider, or write a changed one.",
    )
    parser.add_argument("file", type=Path, help="a Serve config file, like configs/demo.yaml")
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
    parser.add_argument("--output", type=Path, help="write the changed file here, for `serve run`")
    return parser


def _say(lines: Sequence[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _refuse(message: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
