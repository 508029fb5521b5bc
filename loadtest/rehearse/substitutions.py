"""The substitutions of a rehearsal, by name: there are neither images nor GPUs nor a hub here."""

from __future__ import annotations

import copy
import re

from loadtest.rehearse.manifests import PodTemplate, Tree
from loadtest.report.machine import ROOT
from loadtest.service.cluster import DEMO_NAME

_DEMO = ROOT / "models" / "demo"
DELAY_S, GRACE_S = 30.0, 60.0
NAMES = {"GRPC_DNS_RESOLVER": "native"}  # gRPC's own asks no file of hosts
_OBJECT_STORE_BYTES = 100 * 2**20

SUBSTITUTIONS = {
    "image": "each container has this machine's files and Python, and this checkout, for its image",
    "redis": "Redis is this machine's redis-server",
    "models": "the demo pair has the names and commits of the two models, with a context that fits",
    "device": "models compute on CPUs, in float32; Ray counts the GPUs that the manifests ask for",
    "fetch": "the Job waits for some seconds and copies the demo pair in place of asking the hub",
    "shared memory": "Ray's object store has 100 MiB in each pod",
    "delay": f"the first cluster is deleted {DELAY_S:g} s after the switch to a second, and its "
    f"pods have {GRACE_S:g} s to end",
    "pods beside others": "those of a second cluster begin one after the other, on the same cores",
    "names": "a file of hosts takes the place of the cluster's DNS",
}


def substituted_config(config: Tree) -> Tree:
    """Return the Serve config for CPUs and a small context (`device`, `models`)."""
    config = copy.deepcopy(config)
    for application in config["applications"]:
        args = application["args"]
        for name in {"target", "draft"} & args.keys():
            args[name] |= {
                "device": "cpu",
                "dtype": "float32",
                "max_model_len": 2048,
                "kv_cache_tokens": 32768,
                "attention": "auto",
            }
            for key in ("gpu_memory_utilization", "graph_memory_mib"):
                args[name].pop(key, None)
        if "model_name" in args:
            args["model_name"] = DEMO_NAME
        if "router" in args:
            args["router"]["model_name"] = DEMO_NAME
    return config


def substituted_job(job: PodTemplate, fetch_s: float) -> PodTemplate:
    """Return the Job's pod: each model takes half of `fetch_s`, then is the demo's (`fetch`).

    A demo model lies where the hub's client looks for the name and commit of the manifests. So the
    paths of the config stay as they are.
    """
    spec = copy.deepcopy(job.spec)
    [container] = spec["containers"]
    [script] = container["args"]
    lines = []
    for line in script.splitlines():
        name = re.fullmatch(r'python -m models\.fetch "\$(\w+)" --revision "\$(\w+)"', line)
        lines.append(line if name is None else _placed(name[1], name[2], fetch_s / 2))
    container["args"] = ["\n".join(lines)]
    return PodTemplate(group=job.group, spec=spec)


def _placed(model: str, revision: str, after_s: float) -> str:
    """Return the words that bring a demo model, target or draft, after a while."""
    kept = f'"$HF_HOME/hub/models--${{{model}//\\//--}}"'
    return "; ".join(
        (
            f"sleep {after_s:g}",
            f"mkdir -p {kept}/snapshots {kept}/refs",
            f'echo -n "${revision}" > {kept}/refs/main',
            f'cp -r {_DEMO / model.lower()} {kept}/snapshots/"${revision}"',
        )
    )


def object_store() -> dict[str, str]:
    """Return the start parameter of `shared memory`."""
    return {"object-store-memory": str(_OBJECT_STORE_BYTES)}
