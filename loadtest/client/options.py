"""The terms on requests that every trial has which sends a workload."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from deployments.config.schema import RouterConfig
from loadtest.client.workload import Workload

LOAD_TERMS: Mapping[str, Any] = {
    "max_tokens": 100,  # completion tokens of a chat
    "record_max_tokens": 400,  # of a JSON record
    "shared_words": 150,  # of the shared prompt
    "any_text": False,  # do not expect one text per seed
    "seed": 1,  # of everything that is sent, and when
}


def workload_of(terms: SimpleNamespace, config: Mapping[str, Any]) -> Workload:
    """Return the requests for the model of a parsed Serve config file."""
    return Workload(
        RouterConfig.model_validate(config["applications"][0]["args"]["router"]).model_name,
        terms.seed,
        max_tokens=terms.max_tokens,
        record_max_tokens=terms.record_max_tokens,
        shared_words=terms.shared_words,
    )
