"""Whether a config can be served here, told before minutes of loading, in one sentence.

The same sentence comes from `python -m deployments.config --check` and, as DEPLOY_FAILED, from
`build`, which Serve runs in the cluster. A cluster that grows by itself is not refused for what it
has not yet.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import ray
from ray.serve.exceptions import RayServeException

from deployments.api.keys import faults_of_keys
from deployments.config.cluster import connected_cluster, deployed_overrides
from deployments.config.memory import least_rank_bytes, memory_faults
from deployments.config.model_files import file_faults
from deployments.config.placement import Placement, placements_of
from deployments.config.schema import AppConfig
from deployments.config.shortages import Cluster, shortages

logger = logging.getLogger("ray.serve")


class CannotServe(RayServeException, ValueError):
    """The config cannot be served here.

    One of Serve's own errors, because Serve tells those as they are and at once; others it tries
    again three times and tells as a traceback.
    """


def refuse_unservable(config: AppConfig) -> None:
    """Check `build`'s config against the cluster it is being built in, where there is one.

    Raises:
        CannotServe: names all that is missing, and what to use instead; or that Serve's controller
            is too busy to say what is deployed.
    """
    files = file_faults(config)
    if not ray.is_initialized():  # `serve run deployments.app:build` asks before Ray is started
        if files:
            raise CannotServe(sentence(files, (), None))
        return
    cluster = connected_cluster()
    try:
        placements = placements_of(config, deployed_overrides(config))
    except (ValueError, TimeoutError) as error:
        raise CannotServe(str(error)) from None
    missing = shortages(placements, cluster)
    if missing and cluster.may_grow:
        logger.warning("waiting for nodes: %s", "; ".join(missing))
        missing = []
    faults = missing + files
    if len(cluster.nodes) == 1 and not cluster.may_grow:  # else other nodes may have it
        faults += key_file_faults(config)
    if not files:
        faults += least_memory_faults(config, placements, cluster)
    if faults:
        raise CannotServe(sentence(faults, placements, cluster))


def key_file_faults(config: AppConfig) -> list[str]:
    """What is wrong with the file of API keys, if there shall be one."""
    if not config.router.api_keys_file:
        return []
    return faults_of_keys(Path(config.router.api_keys_file))


def least_memory_faults(
    config: AppConfig, placements: Sequence[Placement], cluster: Cluster
) -> list[str]:
    """What cannot fit by the sizes of the files alone; a growing cluster is not asked."""
    if cluster.may_grow:
        return []
    models = {"target": config.target, "draft": config.draft}
    try:
        ranks = {
            section: least_rank_bytes(model, section)
            for section, model in models.items()
            if model is not None
        }
    except ValueError as error:
        return [str(error)]
    return memory_faults(config, ranks, placements, cluster)


def sentence(
    faults: Sequence[str], placements: Sequence[Placement], cluster: Cluster | None
) -> str:
    """All faults in one line, and what to use instead where there is something."""
    text = f"cannot be served here: {'; '.join(faults)}"
    instead = _instead(faults, placements, cluster)
    return f"{text}. {instead}" if instead else text


def _instead(
    faults: Sequence[str], placements: Sequence[Placement], cluster: Cluster | None
) -> str:
    num_needed = sum(
        unit.get("GPU", 0.0) * placement.min_replicas
        for placement in placements
        for unit, _ in placement.units
    )
    num_gpus = num_needed if cluster is None else cluster.total("GPU")
    if num_gpus < num_needed and num_gpus == 0:
        return (
            "Without a GPU use configs/demo.yaml (the shipped pair) or configs/cpu.yaml (a pair of "
            "your own)"
        )
    if num_gpus < num_needed:
        return "On one GPU use configs/single-gpu.yaml (both models share it)"
    if all(fault.startswith("draft.") for fault in faults):
        return "Without a draft model use configs/no-draft.yaml (prompt lookup drafts)"
    if any("model_path" in fault and "models.fetch" not in fault for fault in faults):
        return "configs/demo.yaml brings its own models"
    return ""
