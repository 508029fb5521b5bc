"""The files for one machine, `configs/`: what each says other than the defaults, and why it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.config.examples.page import Example, Remark, Tree
from deployments.config.examples.ray_keys import KEEP_ALIVE_S

SERVE = {
    "proxy_location": "HeadOnly",
    "http_options": {
        "host": "127.0.0.1",
        "port": 8000,
        "request_timeout_s": 600,
        "keep_alive_timeout_s": KEEP_ALIVE_S,
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
    serve=SERVE,
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
    serve=SERVE,
    args=merged(_DEMO_ARGS, _LOOKUP),
    placement=_SMALL,
    deployments=[_process("Router"), _TARGET, _process("Constraint")],
)

HEADS = Example(
    name="heads",
    head="""\
The demo's target without a draft model: an MTP head drafts in the target's own process, and \
suffix decoding where text repeats. models/demo/heads has Medusa heads for the same target.

  serve run configs/heads.yaml       then: curl http://127.0.0.1:8000/v1/models
""",
    serve=SERVE,
    args=merged(
        NO_DRAFT.args,
        {"target": {"heads": Remark("models/demo/mtp", "or a folder of a target of yours")}},
    ),
    placement=_SMALL,
    deployments=NO_DRAFT.deployments,
)

CONCEPTS = Example(
    name="concepts",
    head="""\
The pair for concept sets, which writes a sentence with three to five words that it is given: a \
request with `lookahead` has it use all of them more often (deployments/README.md).

  serve run configs/concepts.yaml    then: curl http://127.0.0.1:8000/v1/models
""",
    serve=SERVE,
    args=merged(
        _DEMO_ARGS,
        {
            "target": {"model_path": "models/demo/concepts/target"},
            "draft": {
                "model_path": Remark(
                    "models/demo/concepts/draft", "must share the target's tokenizer"
                ),
            },
            "router": {"model_name": "outrider-concepts"},
        },
    ),
    placement=_SMALL,
    deployments=DEMO.deployments,
)

SMOLLM2 = Example(
    name="smollm2",
    head="""\
A real assistant of 135M parameters, SmolLM2-135M-Instruct (Apache-2.0), without a GPU or a draft \
model: suffix decoding drafts, and an MTP head in the target's own process.

  python -m models.fetch smollm2     once: 93 MB over the network, 270 MB on disk
  serve run configs/smollm2.yaml     then: curl http://127.0.0.1:8000/v1/models
""",
    serve=SERVE,
    args=merged(
        NO_DRAFT.args,
        {
            "target": {
                "model_path": "smollm2-135m-instruct",
                "heads": Remark("models/demo/smollm2", "an MTP head, see models/demo/README.md"),
                "max_model_len": Remark(4096, "here at most 8192"),
                "kv_cache_tokens": Remark(16384, "24 KB each"),
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

_DRAFT_MODEL: Tree = {
    "model_path": Remark("Qwen/Qwen2.5-0.5B-Instruct", "Apache-2.0, 1 GB of weights"),
    "revision": "7ae557604adf67be50417f59c2c2f167def9a775",
    "device": "cuda",
    "max_model_len": 8192,
}
_ON_GPU: Tree = {
    "target": {
        "device": "cuda",
        "max_model_len": 8192,
        "max_num_batched_tokens": 2048,
        "attention": Remark("varlen", "rather no service than a slow one"),
    },
    "draft": {**_DRAFT_MODEL, "max_num_batched_tokens": 2048, "attention": "varlen"},
    "router": {"max_tokens_limit": 4096},
}
_NEVER_RUN = (
    "Never run on a GPU yet (none was at hand): sizes are computed, from the models' configs."
)

SINGLE_GPU = Example(
    name="single-gpu",
    head=f"""\
Draft and target on one GPU of 24 GB or more: two processes share it, each with a share of its \
memory. Other models: the two model paths, which may be folders.

  serve run configs/single-gpu.yaml  fetches 16 GB once, from the Hugging Face hub

{_NEVER_RUN}
""",
    serve=SERVE,
    args=merged(
        merged(_DEMO_ARGS, _ON_GPU),
        {
            "target": {
                "model_path": Remark("Qwen/Qwen2.5-7B-Instruct", "Apache-2.0, 15 GB of weights"),
                "revision": "a09a35458c702b33eeacc393d103063234e8bc28",
                "kv_cache_tokens": None,
                "gpu_memory_utilization": Remark(
                    0.81, "of 24 GB that leaves room for some 25,000 tokens of 56 KiB"
                ),
                "graph_memory_mib": 1024,
                "max_num_batched_tokens": 1024,
            },
            "draft": {
                "kv_cache_tokens": None,
                "gpu_memory_utilization": Remark(0.16, "and for some 50,000 of 12 KiB"),
                "graph_memory_mib": 512,
                "max_num_batched_tokens": 1024,
            },
            "router": {"model_name": "qwen2.5-7b-instruct"},
        },
    ),
    placement="Placement: both ranks on the same GPU, 0.8 and 0.2 of it in Ray's books.",
    deployments=[
        _process("Router"),
        _engine(
            "Target",
            Remark(
                {"CPU": 1, "GPU": 0.8},
                "Ray's share of the one GPU; memory is what gpu_memory_utilization makes it, Ray "
                "does not enforce it",
            ),
        ),
        _engine("Draft", {"CPU": 1, "GPU": 0.2}),
        _process("Constraint"),
    ],
)

ONE_NODE = Example(
    name="one-node",
    head=f"""\
One machine with 2, 4 or 8 GPUs of 40 GB or more: the draft has one of them, the target the others \
or a power of two of them. No labels, no cluster to start before.

  serve run configs/one-node.yaml    fetches 31 GB once, from the Hugging Face hub

As it stands it is for 2 GPUs. For 4 or 8: target.tensor_parallel_size 2 or 4, and as many bundles \
of Target at the end of this file; then a larger target fits too, of the same family, so that the \
draft stays what it is.

{_NEVER_RUN}
""",
    serve=SERVE,
    args=merged(
        merged(_DEMO_ARGS, _ON_GPU),
        {
            "target": {
                "model_path": Remark("Qwen/Qwen2.5-14B-Instruct", "Apache-2.0, 30 GB of weights"),
                "revision": "cf98f3b3bbb457ad9e2bb7baf9a0125b6b88caa8",
                "kv_cache_tokens": None,
                "gpu_memory_utilization": 0.9,
                "tensor_parallel_size": Remark(1, "as many bundles below; 2 or 4 of 4 or 8 GPUs"),
                "max_num_seqs": 68,
            },
            "draft": {
                "kv_cache_tokens": None,
                "gpu_memory_utilization": Remark(0.5, "1 GB of weights, 12 KiB a token"),
                "max_num_seqs": 68,
            },
            "router": {
                "model_name": "qwen2.5-14b-instruct",
                "max_sessions": 64,
                "max_queued_sessions": 128,
            },
        },
    ),
    placement="Placement: each rank on a GPU of its own.",
    deployments=[
        _process("Router"),
        _engine("Target", Remark({"CPU": 1, "GPU": 1}, "one for each rank")),
        _engine("Draft", {"CPU": 1, "GPU": 1}),
        _process("Constraint"),
    ],
)
