"""`configs/prod.yaml`, which is also what the manifests for KubeRay deploy."""

from __future__ import annotations

from collections.abc import Mapping

from deployments.config.examples.page import Example, Remark, Tree
from deployments.config.examples.ray_keys import KEEP_ALIVE_S


def _scaling(
    fewest: object, most: object, *, up_s: object, down_s: int = 600, **more: object
) -> dict[str, object]:
    return {
        "min_replicas": fewest,
        "max_replicas": most,
        "look_back_period_s": 30,
        "upscale_delay_s": up_s,
        "downscale_delay_s": down_s,
        **more,
    }


def _policy(name: str, limits: Mapping[str, object]) -> dict[str, object]:
    return {"policy_function": f"deployments.scaling:{name}", "policy_kwargs": limits}


_ROUTER: Tree = {
    "name": "Router",
    "autoscaling_config": _scaling(
        2, Remark(4, "4 x 96 sessions, for 2 targets"), up_s=10, target_ongoing_requests=64
    ),
    "max_surge_percent": 100,
    "user_config": {},
    "ray_actor_options": {"num_cpus": 2, "label_selector": {"outrider/role": "router"}},
    "graceful_shutdown_timeout_s": 900,
}
_TARGET: Tree = {
    "name": "Target",
    "autoscaling_config": _scaling(
        Remark(1, "4 GPUs each"),
        Remark(2, "as many as the cluster has nodes for"),
        up_s=Remark(30, "a replica loads for minutes"),
        down_s=900,
        policy=_policy(
            "TargetPolicy",
            {
                "kv_use": 0.8,
                "waiting_tokens": Remark(16384, "here 8 passes"),
                "sessions": 160,
                "spare": 0.3,
            },
        ),
    ),
    "ray_actor_options": {"num_cpus": Remark(1, "the coordinator; it uses no GPU")},
    "placement_group_bundles": [
        {"CPU": 4, "GPU": 1},
        {"CPU": 2, "GPU": 1},
        {"CPU": 2, "GPU": 1},
        {"CPU": 2, "GPU": 1},
    ],
    "placement_group_bundle_label_selector": [{"outrider/role": "target"}],
    "graceful_shutdown_timeout_s": 900,
    "max_surge_percent": Remark(
        0,
        "100 where a target node is to spare: changed args then start the new replica first, "
        "without a gap",
    ),
}
_DRAFT: Tree = {
    "name": "Draft",
    "autoscaling_config": _scaling(
        Remark(1, "1 GPU each; 2: never fewer than two drafts"),
        2,
        up_s=30,
        policy=_policy("DraftPolicy", {"busy": 0.7, "sessions": 160, "spare": 0.3}),
    ),
    "ray_actor_options": {"num_cpus": 1},
    "placement_group_bundles": [{"CPU": 2, "GPU": 1}],
    "placement_group_bundle_label_selector": [{"outrider/role": "draft"}],
    "graceful_shutdown_timeout_s": Remark(60, "sessions go on without a draft"),
}
_CONSTRAINT: Tree = {
    "name": "Constraint",
    "autoscaling_config": _scaling(
        2,
        6,
        up_s=Remark(10, "starts within seconds"),
        policy=_policy("ConstraintPolicy", {"queue_length": 16, "sessions": 200, "spare": 0.3}),
    ),
    "ray_actor_options": {
        "num_cpus": 2,
        "label_selector": Remark(
            {"outrider/role": "in(router,constraint)"},
            "also on nodes of its own. Other words than Router's, on purpose: were all selectors "
            "of this kind the same, Serve would build the application on such a node only, and "
            "where there is none it would wait without a word",
        ),
    },
    "graceful_shutdown_timeout_s": 300,
}

PROD = Example(
    name="prod",
    head="""\
Production: a 72B target on four GPUs of 80 GB of one node, a 0.5B draft on another GPU of the \
same class (a step reads 1 GB, a pass 36 GB on each GPU; steps of a 7B draft would take two fifths \
of a pass each), routers and constraint service on CPU nodes. Made for a cluster; on one machine \
use configs/demo.yaml (no GPU), configs/single-gpu.yaml or configs/one-node.yaml.

  serve deploy configs/prod.yaml     to a running Ray cluster; each node fetches what it needs once,
                                     145 GB for a target, from the Hugging Face hub into HF_HOME;
                                     k8s/base/rayservice.yaml holds the same for KubeRay, with
                                     API keys

To scale the draft from 1 to 2: deployments, Draft, min_replicas. Nothing else has to change.

Nodes are told apart by the label outrider/role: router, draft or target \
(`ray start --labels outrider/role=draft`, or `labels` of a KubeRay worker group). Other models: \
the two model paths, which may be folders at the same path on every node.
""",
    serve={
        "proxy_location": "EveryNode",
        "http_options": {
            "host": "0.0.0.0",
            "port": 8000,
            "request_timeout_s": 900,
            "keep_alive_timeout_s": KEEP_ALIVE_S,
        },
        "logging_config": {"encoding": "JSON", "log_level": "INFO", "enable_access_log": False},
    },
    args={
        "target": {
            "model_path": Remark("Qwen/Qwen2.5-72B-Instruct", "Qwen licence, 145 GB of weights"),
            "revision": "495f39366efef23836d0cfae4fbe635880d2be31",
            "device": "cuda",
            "max_model_len": 16384,
            "kv_cache_tokens": Remark(
                360448,
                "320 KiB a token, so 30 GB on each of 4 GPUs beside 36 GB of weights",
            ),
            "attention": Remark("varlen", "rather no service than a slow one"),
            "max_num_batched_tokens": 2048,
            "tensor_parallel_size": Remark(4, "as many bundles below"),
            "max_num_seqs": 200,
        },
        "draft": {
            "model_path": Remark(
                "Qwen/Qwen2.5-0.5B-Instruct",
                "must share the target's tokenizer; Apache-2.0, 1 GB of weights",
            ),
            "revision": "7ae557604adf67be50417f59c2c2f167def9a775",
            "dtype": "bfloat16",
            "device": "cuda",
            "max_model_len": 16384,
            "kv_cache_tokens": Remark(360448, "12 KiB a token, 4.4 GB beside 1 GB of weights"),
            "attention": "varlen",
            "max_num_batched_tokens": 2048,
            "tensor_parallel_size": Remark(1, "independent of the target's"),
            "max_num_seqs": 192,
        },
        "constraint": {
            "num_children": 4,
            "memory_limit_mb": 1024,
            "cache_size": 256,
            "max_sessions": 256,
        },
        "router": {
            "model_name": "qwen2.5-72b-instruct",
            "default_max_tokens": 512,
            "max_tokens_limit": 8192,
            "api_keys_file": Remark("", "without one, only what is in front keeps strangers out"),
            "body_limit_bytes": 2097152,
            "max_sessions": Remark(
                96,
                "all routers together no more than targets hold: a request that is let in and "
                "finds no place there waits and gets 503, not 429",
            ),
            "max_queued_sessions": 192,
            "speculation": {"method": "draft_model", "prompt_lookup_min": 2},
            "timeouts": {
                "queue_wait_s": 20,
                "first_token_s": 120,
                "failover_s": 120,
                "draft_ms": 200,
            },
        },
        "link": {"host": "node"},
    },
    placement="""\
Placement and numbers. Labels pin each kind to its nodes. The number of each kind follows the load \
between min_replicas and max_replicas. For a fixed number, put num_replicas in the place of the \
whole autoscaling_config.
""",
    deployments=[_ROUTER, _TARGET, _DRAFT, _CONSTRAINT],
)
