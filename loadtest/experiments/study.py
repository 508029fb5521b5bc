"""Studies of a pair: the gain of speculation for a target, its drafts and your prompts.

    python -m loadtest study --target DIR --draft DIR --draft DIR2 --prompts FILE
    python -m loadtest study-structure --target DIR --draft DIR --prompts FILE
    python -m loadtest study-parts --target DIR --draft DIR --prompts FILE

Without options they study the demo pair. A way with a draft model is run with each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

from loadtest.frame.expected import NEEDED, PLACES
from loadtest.frame.experiment import Experiment, Terms, Workload
from loadtest.frame.prompts import DEMO_TASKS, load_prompts
from loadtest.frame.runs import Ask
from loadtest.frame.ways import PLAIN, Way, by_k
from loadtest.frame.workloads import by_task, chats, tokenizer_of, varied
from router.drafters.draft_model import POOL

_TEMPERATURES = (0.0, 0.7, 1.0)
_NUM_PROMPTS = 64  # of each task, at most
_SHARED_TOKENS = 256  # the beginning that all prompts share
_DRAFT: dict[str, Any] = {"drafts": (POOL,)}
_LOOKUP: dict[str, Any] = {"drafts": (), "speculation": {"prompt_lookup_max": 4}}
_SUFFIX: dict[str, Any] = {
    "drafts": (),
    # Prompts that are asked again have answers that it would know.
    "speculation": {
        "suffix_decoding_max_tree_depth": 24,
        "suffix_decoding_max_cached_requests": 0,
    },
}
_ENGINE = {"max_model_len": 2048}


def tasks(name: str) -> Mapping[str, Workload]:
    """Return each task of a file or a set at each temperature; the demo's are drawn when asked."""
    found = (
        {task: _demo_task(task) for task in DEMO_TASKS}
        if name == "demo"
        else by_task(name, _NUM_PROMPTS)
    )
    return {
        f"{task} T={temperature:g}": varied(workload, temperature=temperature)
        for task, workload in found.items()
        for temperature in _TEMPERATURES
    }


def _demo_task(task: str) -> Workload:
    def asks(terms: Terms) -> Sequence[Ask]:
        prompts = load_prompts("demo", terms.count, 0, [task])
        return chats(prompts)(terms)

    return asks


def under_schemas(name: str) -> Mapping[str, Workload]:
    """Return the prompts that have a schema; a file without any makes an error when it is asked."""

    def asks(terms: Terms) -> Sequence[Ask]:
        prompts = [one for one in load_prompts(name, _NUM_PROMPTS, 0) if one.schema is not None]
        if not prompts:
            raise ValueError(f"prompts {name!r}: none has a schema")
        return chats(prompts)(terms)

    return {"with schemas": asks}


def alike(name: str) -> Mapping[str, Workload]:
    """Return prompts of all tasks that begin alike: with the first prompts, as much as fits."""

    def asks(terms: Terms) -> Sequence[Ask]:
        tokenizer = tokenizer_of(terms.models.target)
        prompts = [one.encode(tokenizer) for one in load_prompts(name, 2, 0)]
        head = tuple(token_id for prompt in prompts for token_id in prompt)[:_SHARED_TOKENS]
        return [
            Ask(prompt_ids=head + prompt, max_tokens=terms.tokens, seed=index)
            for index, prompt in enumerate(islice(cycle(prompts), terms.count))
        ]

    return {"alike": asks}


STUDY = Experiment(
    question="what does speculation bring for your own target, drafts and prompts, next to theory",
    workloads=tasks("demo"),
    of_prompts=tasks,
    ways={
        **by_k((1, 3, 5, 8), **_DRAFT),
        PLAIN: Way(k=0),
        "prompt lookup k=3": Way(k=3, **_LOOKUP),
        "prompt lookup": Way(**_LOOKUP),
        "suffix k=3": Way(k=3, **_SUFFIX),
        "suffix": Way(**_SUFFIX),
    },
    batches=(1, 4, 8),
    measures=("decode_tokens_per_s", "tokens_per_s", *NEEDED, "mean_k", *PLACES),
    engine=_ENGINE,
    repeats=3,
)

_FREE: dict[str, Any] = {"is_constrained": False, "texts": "free", **_DRAFT}

STRUCTURE = Experiment(
    question="what do the JSON schemas of your prompts cost, with drafts and without",
    workloads=under_schemas("demo"),
    of_prompts=under_schemas,
    ways={
        "free": Way(k=0, **(_FREE | {"drafts": None})),
        "free, k=3": Way(k=3, **_FREE),
        "free, adaptive": Way(**_FREE),
        "schema": Way(k=0),
        "schema, k=3": Way(k=3, **_DRAFT),
        "schema, adaptive": Way(**_DRAFT),
    },
    measures=("decode_tokens_per_s", "acceptance", "tokens_per_round", "tokens_per_answer"),
    engine=_ENGINE,
    tokens=96,
    repeats=3,
)

_CACHES = {"enable_prefix_caching": True}
_SLOW = {"attention": "reference"}  # torch's own operations
_Q8 = {"quantization": "q8"}
_ALL_ON = Way(target=_CACHES, draft=_CACHES | _Q8)

PARTS = Experiment(
    question="what is each part of the engine worth, on prompts that begin alike",
    workloads=alike("demo"),
    of_prompts=alike,
    ways={
        "all on": _ALL_ON,
        # There is no q8 without them.
        "without kernels": replace(
            _ALL_ON, target=_CACHES | _SLOW, draft=_CACHES | _SLOW, texts=""
        ),
        "without prefix cache": replace(_ALL_ON, target={}, draft=_Q8),
        "without q8": replace(_ALL_ON, draft=_CACHES),
        "without drafts": replace(_ALL_ON, k=0),
        "all off": Way(k=0, target=_SLOW, draft=_SLOW, texts=""),
    },
    batches=(4, 1),
    engine=_ENGINE,
    repeats=3,
)
