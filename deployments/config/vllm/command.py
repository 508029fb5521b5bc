"""The words of `vllm serve`, on the command line of `python -m deployments.config`."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from deployments.config.examples.page import Example, Tree, printed
from deployments.config.examples.shipped import SERVE, merged
from deployments.config.vllm.engine_args import engine_tree, given_words
from deployments.config.vllm.words import SERVER_WORDS, WORDS, Word

_SPARE_SEQS = 4  # places on a target beside the sessions that a router runs, for /health
_SPREAD = "Placement: a bundle for each rank, all ranks of a model on one node."


def add_words(parser: argparse.ArgumentParser) -> None:
    """Let a parser take every word of vLLM's, with dashes."""
    group = parser.add_argument_group(
        "vLLM's words",
        "make a config file in place of changing one; those that mean nothing here are refused",
    )
    for key, word in {**WORDS, **SERVER_WORDS}.items():
        is_shown = bool(word.place) or key == "speculative_config"
        flag, about = f"--{key.replace('_', '-')}", word.place if is_shown else argparse.SUPPRESS
        options: dict[str, Any] = {"dest": f"vllm_{key}", "default": None, "help": about}
        if word.kind == "bool":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        else:
            group.add_argument(flag, type=_reader(word), metavar=_shown(word), **options)


def asked_words(options: argparse.Namespace) -> dict[str, Any]:
    """The words that a command line has, by vLLM's names in Python."""
    found = {key: getattr(options, f"vllm_{key}") for key in {**WORDS, **SERVER_WORDS}}
    return {key: value for key, value in found.items() if value is not None}


def serve_page(words: Mapping[str, Any], argv: Sequence[str]) -> str:
    """The Serve config file that vLLM's words mean, every key with a comment.

    Args:
        words: with `model`.
        argv: the command line, for the file's head.

    Raises:
        ValueError: a word is unknown, or means nothing here; names it, its value and what to use.
    """
    served, engine = given_words(words, SERVER_WORDS)
    args = engine_tree(engine)
    target, router = args["target"], args["router"]
    router.setdefault("model_name", target["model_path"])
    num_seqs = target.get("max_num_seqs", 0)
    if num_seqs > 0:  # so many at once, and others wait
        router["max_sessions"] = num_seqs
        for model in (target, args["draft"]):
            if model is not None:
                model["max_num_seqs"] = num_seqs + _SPARE_SEQS
    example = Example(
        name="vllm",
        head="Made of vLLM's words; `serve run` takes it.\n\n"
        f"  python -m deployments.config {shlex.join(argv)}\n",
        serve=merged(SERVE, served),
        args=args,
        placement=_SPREAD,
        deployments=_deployments(args),
        origin="It is yours to change.",
    )
    return printed(example)


def _deployments(args: Tree) -> list[dict[str, Any]]:
    own = {"num_replicas": 1, "ray_actor_options": {"num_cpus": 0.1}}
    found = [{"name": "Router", **own}, {"name": "Target", **own} | _bundles(args["target"])]
    if args["draft"] is not None:
        found.append({"name": "Draft", **own} | _bundles(args["draft"]))
    return [*found, {"name": "Constraint", **own}]


def _bundles(model: Tree) -> dict[str, Any]:
    """On a CPU little is set aside, as in the shipped files: the ranks share the cores."""
    is_gpu = str(model.get("device", "cpu")).startswith("cuda")
    bundle = {"CPU": 1, "GPU": 1} if is_gpu else {"CPU": 0.1}
    ranks = model.get("tensor_parallel_size", 1)
    return {"placement_group_bundles": [bundle] * (ranks if isinstance(ranks, int) else 1)}


def _reader(word: Word) -> Any:
    return {"int": int, "float": float, "json": _read_json}.get(word.kind, str)


def _read_json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be JSON, got {text!r} ({error})") from None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a key is given twice: {', '.join(key for key, _ in pairs)}")
    return found


def _shown(word: Word) -> str:
    return {"int": "N", "float": "X", "json": "JSON"}.get(word.kind, "TEXT")
