"""Experiments with llama.cpp and vLLM beside ours: the same prompts, weights and threads.

Without `--llama-server` ours is measured alone. llama.cpp is timed by its own clock. Run them with
`--threads 1` and `--threads 2`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.frame.claims import Goal
from loadtest.frame.experiment import Experiment, Workload
from loadtest.frame.llama import LOOKUPS
from loadtest.frame.prompts import Prompt
from loadtest.frame.ways import Way, name_of
from loadtest.frame.workloads import chats, demo
from router.limits import SpeculationLimits

_TASKS, _DEMO_TASKS = (Path(__file__).with_name(name) for name in ("tasks.json", "tasks_demo.json"))
_REPEATING = ("json", "edits", "summaries")  # tasks whose answers repeat what they were given
_MAX_MODEL_LEN = 1024


def tasks_of(path: Path) -> dict[str, Workload]:
    """Return a workload for each task of a file."""
    content: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))
    return {
        task: chats(
            [Prompt(task=task, messages=({"role": "user", "content": text},)) for text in texts]
        )
        for task, texts in content.items()
    }


def beside(ks: Sequence[int]) -> dict[str, Way]:
    """Return ours by k, then llama.cpp's ways, then transformers' assistant."""
    return {
        "plain": Way(k=0),
        **{f"ours k={k}": Way(k=k) for k in ks},
        "ours adaptive": Way(),
        "plain llama": Way(k=0, at="llama", texts="", like="plain"),
        **{f"llama draft k={k}": Way(k=k, at="llama", texts="") for k in ks},
        **{f"llama {name}": Way(k=0, at="llama", drafter=name, texts="") for name in LOOKUPS},
        "assisted k=5": Way(k=5, at="transformers", texts=""),
    }


_WITH_DRAFT = (
    # A token's time of ours over llama.cpp's is llama.cpp's rate over ours.
    Goal(way="plain llama", to="plain", measure="decode_tokens_per_s", at_most=1.15),
    Goal(
        way="ours *",
        to="llama *",
        by="ratio to best",
        measure="decode_tokens_per_s",
        at_least=1.4,
    ),
    Goal(way="ours *", to="assisted *", by="ratio to best", at_least=3.0),
)

_SAME: Mapping[str, Any] = {
    "measures": ("decode_tokens_per_s", "tokens_per_s", "acceptance"),
    "router": {  # ours drafts as the product does
        "speculation": {
            name: SpeculationLimits.model_fields[name].default
            for name in ("prompt_lookup_max", "suffix_decoding_max_tree_depth")
        }
    },
    "engine": {"max_model_len": _MAX_MODEL_LEN, "kv_cache_tokens": 2 * _MAX_MODEL_LEN},
    "count": 3,
    "repeats": 4,
}

LLAMA_DEMO = Experiment(
    question="how fast is llama.cpp beside ours, with the demo pair",
    workloads=tasks_of(_DEMO_TASKS),
    ways=beside((3, 5)),
    goals=_WITH_DRAFT,
    tokens=48,
    **_SAME,
)

LLAMA_349M = Experiment(
    question="how fast is llama.cpp beside ours, with a pair of 349M and 18M",
    workloads=tasks_of(_DEMO_TASKS),
    ways=beside((3, 5, 8)),
    goals=_WITH_DRAFT,
    pair="349m-18m",
    tokens=48,
    **_SAME,
)


# Files of one model, by the types that llama-quantize makes of target.gguf.
_TYPES = ("Q8_0", "Q4_0", "Q4_K_M")
_WHOLE, _DRAFTED = "BF16", "Q4_0"


def _file(kind: str) -> Mapping[str, str]:
    return {} if kind == _WHOLE else {"model_path": f"gguf/smollm2/{kind}.gguf"}


def _undrafted(kind: str) -> dict[str, Way]:
    return {
        f"ours {kind}": Way(k=0, target=_file(kind), texts=kind),
        f"llama {kind}": Way(k=0, at="llama", target=_file(kind), texts=""),
    }


def _drafted(kind: str) -> dict[str, Way]:
    target = _file(kind)
    ours = {
        f"ours {kind} {name_of(k)}": Way(k=k, target=target, texts=kind) for k in (3, 5, 8, None)
    }
    theirs = {
        f"llama {kind} {name}": Way(k=0, at="llama", drafter=name, target=target, texts="")
        for name in LOOKUPS
    }
    return ours | theirs


LLAMA_SMOLLM2 = Experiment(
    question="how fast is llama.cpp beside ours, by the bits of a real model without a draft model",
    workloads=tasks_of(_TASKS),
    ways={
        name: way
        for kind in (_WHOLE, *_TYPES)
        for name, way in (
            _undrafted(kind) | (_drafted(kind) if kind in (_WHOLE, _DRAFTED) else {})
        ).items()
    },
    goals=(
        *(
            Goal(way=f"llama {kind}", to=f"ours {kind}", measure="decode_tokens_per_s", at_most=1.1)
            for kind in (_WHOLE, *_TYPES)
        ),
        *(
            Goal(
                way=f"ours {kind} *",
                to=f"llama {kind} *",
                by="ratio to best",
                measure="decode_tokens_per_s",
                at_least=1.4,
                only={"workload": task},
            )
            for kind in (_WHOLE, _DRAFTED)
            for task in _REPEATING
        ),
    ),
    pair="smollm2",
    tokens=64,
    **_SAME,
)

# vLLM's layers under our engine, where vLLM is installed.
_BY_VLLM = {"engine": "vllm"}

VLLM = Experiment(
    question="what does our loop around vLLM's layers cost, next to vLLM's own and our own engine",
    workloads={"story": demo("story")},
    ways={
        "vllm": Way(k=0, at="vllm", texts=""),
        "our loop": Way(k=0, target=_BY_VLLM, texts=""),
        "our engine": Way(k=0, texts=""),
        # Each with the draft model, k=5: vLLM's own speculation, ours around its layers for both
        # models, ours with our engine for the draft, and our engine for both.
        "vllm, drafts": Way(k=5, at="vllm", texts=""),
        "our loop, drafts": Way(k=5, target=_BY_VLLM, draft=_BY_VLLM, texts=""),
        "our loop, own draft": Way(k=5, target=_BY_VLLM, texts=""),
        "our engine, drafts": Way(k=5, texts=""),
    },
    batches=(1, 8),
    measures=("tokens_per_s",),
    goals=(
        Goal(way="our loop", to="vllm", at_least=0.95),
        Goal(way="our loop, drafts", to="vllm, drafts", at_least=0.95),
    ),
    repeats=5,
)
