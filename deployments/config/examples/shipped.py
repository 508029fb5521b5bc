"""The files for one machine, `configs/`: what each says other than the defaults, and why it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.config.examples.page import Example, Remark, Tree

_SERVE = {
    "proxy_location": "HeadOnly",
    "http_options": {
        "host": "127.0.0.1",
        "port": 8000,
        "request_timeout_s": 600,
        "keep_alive_timeout_s": 60,
    },
    "logging_config": {"encoding": "TEXT", "log_level": "INFO", "enable_access_log": False},
}
_SMALL = (
    "Placement. CPU numbers are what Ray sets aside, not what a process may use; they are small "
    "here so that everything fits on any machine."
)
_SHUTDOWN = {"graceful_shutdown_timeout_s": 5}


def merged(base: Tree, changes: Tree) -> dict[str, Any]:
    """`base` with `changes` laid over it, section by section."""
    return {**base} | {
        key: merged(base[key], value)
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
        else value
        for key, value in changes.items()
    }


def _process(name: str) -> Tree:
    return {
        "name": name,
        "num_replicas": 1,
        "ray_actor_options": {"num_cpus": 0.1},
        **_SHUTDOWN,
    }


def _engine(name: str, bundle: Any) -> Tree:
    return {
        "name": name,
        "num_replicas": 1,
        "ray_actor_options": {"num_cpus": 0.1},
        "placement_group_bundles": [bundle],
        **_SHUTDOWN,
    }


_TARGET = _engine("Target", Remark({"CPU": 0.1}, "on GPUs: {CPU: 1, GPU: 1}"))

_DEMO_ARGS: Tree = {
    "target": {
        "model_path": "models/demo/target",
        "max_model_len": 1024,
        "max_num_seqs": 36,
    },
    "draft": {
        "model_path": Remark("models/demo/draft", "must share the target's tokenizer"),
        "dtype": "bfloat16",
        "device": "cpu",
        "max_model_len": 1024,
        "kv_cache_tokens": 16384,
        "num_threads": 1,
        "quantization": None,
        "max_num_seqs": 36,
    },
    "constraint": {"max_sessions": 64},
    "router": {
        "model_name": "outrider-demo",
        "max_tokens_limit": 1024,
        "max_sessions": 32,
        "max_queued_sessions": 64,
        "speculation": {"method": "draft_model"},
    },
    "link": {"host": "loopback"},
}
_LOOKUP: Tree = {
    "draft": None,
    "router": {"speculation": {"method": "suffix"}},
}

DEMO = Example(
    name="demo",
    head="""\
The demo: a small pair that is shipped with the repo, on a laptop without a GPU.

  serve run configs/demo.yaml        then: curl http://127.0.0.1:8000/v1/models

For a pair of your own without a GPU set the two model paths, and num_threads: the target takes \
most cores, the draft few, and one is for routers; both together must not exceed the cores, \
because spinning threads steal each other's time.
""",
    serve=_SERVE,
    args=_DEMO_ARGS,
    placement=_SMALL,
    deployments=[
        _process("Router"),
        _TARGET,
        _engine("Draft", {"CPU": 0.1}),
        _process("Constraint"),
    ],
)

NO_DRAFT = Example(
    name="no-draft",
    head="""\
The demo's target without a draft model: only suffix decoding drafts, which needs no model at all.

  serve run configs/no-draft.yaml    then: curl http://127.0.0.1:8000/v1/models
""",
    serve=_SERVE,
    args=merged(_DEMO_ARGS, _LOOKUP),
    placement=_SMALL,
    deployments=[_process("Router"), _TARGET, _process("Constraint")],
)

SMOLLM2 = Example(
    name="smollm2",
    head="""\
A real assistant of 135M parameters, SmolLM2-135M-Instruct (Apache-2.0), without a GPU or a draft \
model: suffix decoding drafts.

  python -m models.fetch smollm2     once: 93 MB over the network, 270 MB on disk
  serve run configs/smollm2.yaml     then: curl http://127.0.0.1:8000/v1/models
""",
    serve=_SERVE,
    args=merged(
        NO_DRAFT.args,
        {
            "target": {
                "model_path": "smollm2-135m-instruct",
                "max_model_len": Remark(4096, "here at most 8192"),
                "kv_cache_tokens": Remark(16384, "23 KB each"),
                "num_threads": Remark(1, "2 or 4 pay where cores are free"),
                "max_num_seqs": 12,
            },
            "router": {
                "model_name": "smollm2-135m-instruct",
                "max_tokens_limit": 4096,
                "max_sessions": 8,
                "max_queued_sessions": 16,
            },
        },
    ),
    placement=_SMALL,
    deployments=NO_DRAFT.deployments,
)

SINGLE_GPU = Example(
    name="single-gpu",
    head="""\
Draft and target on one GPU: two processes share it, each with a share of its memory.

  serve run configs/single-gpu.yaml  after setting the two model paths below

Never run on a GPU yet (none was at hand): sizes are computed, for a 24 GB card, an 8B target and \
a 1B draft in bfloat16: 16 + 2.5 GB of weights, 128 + 32 KiB of KV per token.
""",
    serve=_SERVE,
    args=merged(
        _DEMO_ARGS,
        {
            "target": {
                "model_path": "/models/target",
                "device": "cuda",
                "max_model_len": 8192,
                "block_size": 16,
            },
            "draft": {
                "model_path": Remark("/models/draft", "must share the target's tokenizer"),
                "device": "cuda",
                "max_model_len": 8192,
            },
            "router": {"model_name": "outrider", "max_tokens_limit": 4096},
        },
    ),
    placement="Placement: both ranks on the same GPU, 0.8 and 0.2 of it in Ray's books.",
    deployments=[
        _process("Router"),
        _engine(
            "Target",
            Remark(
                {"CPU": 1, "GPU": 0.8},
                "Ray's share of the one GPU; memory is what the sizes above make it, Ray does not "
                "enforce it",
            ),
        ),
        _engine("Draft", {"CPU": 1, "GPU": 0.2}),
        _process("Constraint"),
    ],
)
