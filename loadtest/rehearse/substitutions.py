"""The substitutions of a rehearsal, by name: there are neither images nor GPUs nor a hub here."""

from __future__ import annotations

import copy
import re

from loadtest.rehearse.manifests import PodTemplate, Tree
from loadtest.report.machine import ROOT

_DEMO = ROOT / "models" / "demo"
NAMES = {"GRPC_DNS_RESOLVER": "native"}  # gRPC's own asks no file of hosts
_OBJECT_STORE_BYTES = 100 * 2**20

SUBSTITUTIONS = {
    "image": "each container has this machine's files and Python in place of its image",
    "redis": "Redis is this machine's redis-server",
    "models": "the demo pair serves in place of the two models, with a context that fits it",
    "device": "models compute on CPUs, in float32; Ray counts the GPUs that the manifests ask for",
    "fetch": "the Job waits for some seconds in place of asking the hub",
    "shared memory": "Ray's object store has 100 MiB in each pod",
    "names": "a file of hosts takes the place of the cluster's DNS",
}


def substituted_config(config: Tree) -> Tree:
    """Return the Serve config with the demo pair on CPUs (`models`, `device`)."""
    config = copy.deepcopy(config)
    [application] = config["applications"]
    args = application["args"]
    for name in ("target", "draft"):
        args[name] |= {
            "model_path": str(_DEMO / name),
            "revision": None,
            "device": "cpu",
            "dtype": "float32",
            "max_model_len": 2048,
            "kv_cache_tokens": 32768,
            "attention": "auto",
        }
        for key in ("gpu_memory_utilization", "graph_memory_mib"):
            args[name].pop(key, None)
    args["router"] |= {"model_name": "outrider-demo", "tokenizer_path": str(_DEMO / "target")}
    return config


def substituted_job(job: PodTemplate, fetch_s: float) -> PodTemplate:
    """Return the Job's pod, which takes `fetch_s` seconds to bring the models (`fetch`)."""
    spec = copy.deepcopy(job.spec)
    [container] = spec["containers"]
    [script] = container["args"]
    lines = [line for line in script.splitlines() if "models.fetch" not in line]
    mark = [re.sub(r"^touch", f'sleep {fetch_s}; mkdir -p "$HF_HOME"; touch', one) for one in lines]
    container["args"] = ["\n".join(mark)]
    return PodTemplate(group=job.group, spec=spec)


def object_store() -> dict[str, str]:
    """Return the start parameter of `shared memory`."""
    return {"object-store-memory": str(_OBJECT_STORE_BYTES)}
