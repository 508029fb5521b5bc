"""The words of `vllm serve`, on the command line of `python -m deployments.config`."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from deployments.config.applications import IMPORT_PATH, Tree
from deployments.config.placement import deployment_of
from deployments.config.reference import differing
from deployments.config.schema import AppConfig
from deployments.config.vllm.engine_args import engine_tree, given_words
from deployments.config.vllm.words import SERVER_WORDS, WORDS, Word

_SPARE_SEQS = 4  # places on a target beside the sessions that a router runs, for /health
# As in the files of `configs/`.
_SERVE: Tree = {
    "proxy_location": "HeadOnly",
    "http_options": {
        "host": "127.0.0.1",
        "request_timeout_s": 600,
        "keep_alive_timeout_s": 120,  # longer than clients keep theirs
    },
    "logging_config": {"enable_access_log": False},
}
_HEAD = """\
# Made of vLLM's words; `serve run` takes it. It is yours to change.
#
#   python -m deployments.config {words}
#
# It says only what differs from the defaults: deployments/docs/config-keys.md lists every key.
"""


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
    """Return the words that a command line has, by vLLM's names in Python."""
    found = {key: getattr(options, f"vllm_{key}") for key in {**WORDS, **SERVER_WORDS}}
    return {key: value for key, value in found.items() if value is not None}


def serve_page(words: Mapping[str, Any], argv: Sequence[str]) -> str:
    """Return the Serve config file that vLLM's words mean, without what is a default anyway.

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
    config = AppConfig.model_validate(args)
    application: Tree = {"name": "outrider", "import_path": IMPORT_PATH}
    application["args"] = differing(AppConfig, args)
    if bundles := _bundles(config):
        application["deployments"] = bundles
    tree = _SERVE | {"http_options": _SERVE["http_options"] | served.get("http_options", {})}
    text = yaml.safe_dump(tree | {"applications": [application]}, sort_keys=False)
    given = shlex.join(argv).replace("\n", "\n# ")
    return f"{_HEAD.format(words=given)}\n{text}"


def _bundles(config: AppConfig) -> list[Tree]:
    """Return placement groups for models that run on a CPU.

    Little is set aside, as in the shipped files: the ranks share the cores.
    """
    return [
        {
            "name": deployment_of(section),
            "placement_group_bundles": [{"CPU": 0.1} for _ in range(model.tensor_parallel_size)],
        }
        for section, model in config.models.items()
        if not model.device.startswith("cuda")
    ]


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
