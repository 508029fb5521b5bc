"""The options on requests that every command has which drives a service by itself."""

from __future__ import annotations

import argparse
from typing import Any

from deployments.config.schema import RouterConfig
from loadtest.client.workload import Workload


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `workload_of` reads."""
    parser.add_argument("--max-tokens", type=int, default=100, help="completion tokens of a chat")
    parser.add_argument("--record-max-tokens", type=int, default=400, help="of a JSON record")
    parser.add_argument("--shared-words", type=int, default=150, help="of the shared prompt")
    parser.add_argument("--any-text", action="store_true", help="do not expect one text per seed")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is sent, and when")


def workload_of(arguments: argparse.Namespace, config: dict[str, Any]) -> Workload:
    """Return the requests for the model of a parsed Serve config file."""
    return Workload(
        RouterConfig.model_validate(config["applications"][0]["args"]["router"]).model_name,
        arguments.seed,
        max_tokens=arguments.max_tokens,
        record_max_tokens=arguments.record_max_tokens,
        shared_words=arguments.shared_words,
    )
