"""Checks if a config can be served here: finds its faults and says which of them count where.

`check` finds all that can be known without loading torch. `python -m deployments.config --check`
adds the sizes of the models (`examine`). `build`, which Serve runs in the cluster, refuses with the
same sentence, before minutes of loading. `serve status` shows it as DEPLOY_FAILED.
"""

from __future__ import annotations

import errno
import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import ray
from ray.serve.exceptions import RayServeException

from deployments.api.keys import faults_of_keys
from deployments.api.schemas.sampling_defaults import sampling_defaults
from deployments.config.applications import applications_of
from deployments.config.cluster import Cluster, connected_cluster, deployed_overrides
from deployments.config.explain import (
    admission_notes,
    bandwidth_notes,
    drafting_notes,
    loss_notes,
    thread_notes,
)
from deployments.config.fault import Fault
from deployments.config.fit import ModelSizes, least_rank_bytes, measured, memory_faults, shortages
from deployments.config.live_draft import wanted_draft
from deployments.config.model_files import file_faults, resolved, to_come, with_shared_vocabulary
from deployments.config.model_paths import folder_of
from deployments.config.placement import Placement, deployment_of, placements_of
from deployments.config.schema import AppConfig
from deployments.config.sections.models import Models, section_of_draft
from deployments.config.serve_file import ServeFile
from models.fetch.hub import snapshot_of

logger = logging.getLogger("ray.serve")

_KEYS, _SAMPLING = "router.api_keys_file", "router.generation_config"
_EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


class CannotServe(RayServeException, ValueError):
    """The config cannot be served here.

    It is one of Serve's own errors, because Serve reports those as they are and at once. Serve
    tries again three times after other errors and reports them as a traceback.
    """


def check(
    config: Models,
    cluster: Cluster,
    placements: Sequence[Placement],
    http: tuple[str, int] | None = None,
) -> list[Fault]:
    """Find everything that is wrong, as far as that can be known without loading torch.

    Args:
        config: an unresolved one.
        cluster: where it is to be served.
        placements: of its deployments.
        http: address and port that must be free on this machine, if that is to be looked at.
    """
    files = file_faults(config)
    faults = [*shortages(placements, cluster), *files, *_engine_faults(config)]
    if isinstance(config, AppConfig):
        faults += [*_key_faults(config), *_span_faults(config), *_further_file_faults(config)]
    if http is not None:
        faults += _port_faults(*http)
    if not files:
        faults += _least_memory_faults(config, placements, cluster)
    return faults


def sorted_out(faults: Sequence[Fault], cluster: Cluster) -> tuple[list[Fault], list[str]]:
    """Return the faults that keep the config from being served, and notes on those that may not.

    Nodes and memory that a cluster lacks are waited for if it may grow. Files need not be on this
    machine if it is none of the cluster's. Things of one node need not be here if there are, or may
    come, others.
    """
    refusals, notes = [], []
    others_may_differ = cluster.is_elsewhere or cluster.may_grow or len(cluster.nodes) > 1
    for fault in faults:
        if cluster.may_grow and fault.kind == "nodes":
            notes.append(f"not there yet, but the cluster may grow: {fault}")
        elif cluster.may_grow and fault.kind == "memory":
            notes.append(str(fault))
        elif cluster.is_elsewhere and fault.kind == "files":
            notes.append(f"on this machine {fault}; the nodes must have it")
        elif others_may_differ and fault.kind == "local":
            notes.append(f"on this machine {fault}; nodes that use it must have it")
        else:
            refusals.append(fault)
    return refusals, notes


# --- for the application that is built ------------------------------------------------------------


def refuse_unservable(config: Models) -> None:
    """Check an application's tree against the cluster it is being built in, where there is one.

    Raises:
        CannotServe: names all that is missing, and what to use instead; or that Serve's controller
            is too busy to say what is deployed.
    """
    if not ray.is_initialized():  # `serve run deployments.app:build` asks before Ray is started
        if files := file_faults(config):
            raise CannotServe(sentence(files, (), None))
        return
    cluster = connected_cluster()
    try:
        placements = placements_of(config, deployed_overrides(config))
    except (ValueError, TimeoutError) as error:
        raise CannotServe(str(error)) from None
    refusals, notes = sorted_out(check(config, cluster, placements), cluster)
    for note in [*notes, *thread_notes(config, cluster)]:
        logger.warning("%s", note)
    if refusals:
        raise CannotServe(sentence(refusals, placements, cluster))


# --- for people -----------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Findings:
    """The findings about a file; `refusals` decide."""

    refusals: list[Fault]
    notes: list[str]
    sizes: dict[str, ModelSizes] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)


def examine(served: ServeFile, cluster: Cluster) -> Findings:
    """Find all that can be known without loading weights; the slow part only if all else is well.

    Args:
        served: the file.
        cluster: this machine, or the cluster that is connected.
    """
    config = served.config
    notes = [
        *admission_notes(config, served.placements, served.router),
        *drafting_notes(config),
        *thread_notes(config, cluster),
    ]
    http = None if cluster.is_elsewhere else served.http
    faults = check(config, cluster, served.placements, http)
    lacks_files = any(fault.kind == "files" for fault in faults)
    if not lacks_files:
        faults += _live_draft_faults(served)
    # By the files' sizes alone memory is known too roughly for people: it is measured below.
    refusals, more = sorted_out([one for one in faults if one.kind != "memory"], cluster)
    findings = Findings(refusals=refusals, notes=notes + more)
    if refusals or lacks_files:
        findings.unknown = _why_unknown(config)
        return findings
    for section, model in resolved(config).models.items():
        try:
            missing = to_come(Path(model.model_path), f"{section}.model_path")
            if missing is not None:
                findings.unknown[section] = str(missing)
                continue
            findings.sizes[section] = measured(model, cluster.gpu_bytes)
        except ValueError as error:
            findings.refusals.append(Fault(section, str(error)))
            findings.unknown[section] = "the model cannot be served"
    findings.notes += _revision_notes(config)
    findings.notes += loss_notes(config, served.placements, findings.sizes)
    findings.notes += bandwidth_notes(config, served.placements, findings.sizes, cluster)
    if not findings.refusals:
        ranks = {section: sizes.rank for section, sizes in findings.sizes.items()}
        found = memory_faults(config, ranks, served.placements, cluster)
        findings.refusals, more = sorted_out(found, cluster)
        findings.notes += more
    return findings


def sentence(
    faults: Sequence[Fault], placements: Sequence[Placement], cluster: Cluster | None
) -> str:
    """Name all faults in one line, and the config to use instead where there is one."""
    text = f"cannot be served here: {'; '.join(map(str, faults))}"
    instead = _instead(faults, placements, cluster)
    return f"{text}. {instead}" if instead else text


def _instead(
    faults: Sequence[Fault], placements: Sequence[Placement], cluster: Cluster | None
) -> str:
    num_needed = sum(
        unit.get("GPU", 0.0) * placement.min_replicas
        for placement in placements
        for unit, _ in placement.units
    )
    num_gpus = num_needed if cluster is None else cluster.total("GPU")
    lacks_nodes = cluster is None or any(fault.kind == "nodes" for fault in faults)
    if lacks_nodes and num_gpus < num_needed and num_gpus == 0:
        return (
            "Without a GPU use configs/demo.yaml (the shipped pair, or one of your own by its "
            "model paths)"
        )
    if lacks_nodes and num_gpus == 1:
        return "On one GPU use configs/single-gpu.yaml (both models share it)"
    if lacks_nodes and num_gpus > 0 and cluster is not None and len(cluster.nodes) == 1:
        return "On one machine with several GPUs use configs/one-node.yaml"
    if all(fault.key.startswith(("draft.", "drafts.")) for fault in faults):
        return "Without a draft model use configs/no-draft.yaml (suffix decoding drafts)"
    if any(fault.key.endswith("model_path") and not _is_fetchable(fault) for fault in faults):
        return "configs/demo.yaml brings its own models"
    return ""


def _is_fetchable(fault: Fault) -> bool:
    return "models.fetch" in fault.text


def _why_unknown(config: AppConfig) -> dict[str, str]:
    reasons = {}
    for section, model in config.models.items():
        try:
            folder_of(model, section)
        except ValueError as error:
            reasons[section] = str(error)
        else:
            reasons[section] = "not computed, because the config is refused"
    return reasons


def _revision_notes(config: AppConfig) -> list[str]:
    """Name the commits at which the hub's models are served, where the config may mean others."""
    notes = []
    for section, model in config.models.items():
        snapshot = snapshot_of(Path(resolved(config).models[section].model_path))
        if snapshot is not None and model.revision != snapshot.commit:
            branch = model.revision or "main"
            notes.append(
                f"{section}: {branch} of {snapshot.repository} may move; "
                f"{section}.revision={snapshot.commit} keeps what it is now"
            )
    return notes


def _live_draft_faults(served: ServeFile) -> list[Fault]:
    """Find the draft models of a `user_config` with which replicas would not start."""
    overrides = {options["name"]: options for options in applications_of(served.tree).overrides}
    faults = []
    for pool, model in with_shared_vocabulary(resolved(served.config)).draft_models.items():
        name = deployment_of(section_of_draft(pool))
        try:
            wanted_draft(model, overrides.get(name, {}).get("user_config"))
        except ValueError as error:
            faults.append(Fault(f"deployments.{name}", str(error)))
    return faults


# --- faults of the small kinds --------------------------------------------------------------------


def _key_faults(config: AppConfig) -> list[Fault]:
    if not config.router.api_keys_file:
        return []
    found = faults_of_keys(Path(config.router.api_keys_file))
    return [Fault(_KEYS, text.removeprefix(f"{_KEYS}: "), "local") for text in found]


def _span_faults(config: AppConfig) -> list[Fault]:
    key = "router.otlp_traces_endpoint"
    if not config.router.otlp_traces_endpoint or _is_installed(_EXPORTER):
        return []
    return [Fault(key, "needs packages that are missing: pip install 'outrider[otel]'")]


def _engine_faults(config: Models) -> list[Fault]:
    text = "needs vLLM, which is not installed: see deployments/docs/vllm-engine.md"
    return [
        Fault(f"{section}.engine", text, "local")
        for section, model in config.models_here.items()
        if model.engine == "vllm" and not _is_installed("vllm")
    ]


def _further_file_faults(config: AppConfig) -> list[Fault]:
    """Find files that a router and the constraint service read, or make, when they start."""
    router, faults = config.router, []
    try:
        sampling_defaults(router.generation_config, {}, router.override_generation_config)
    except ValueError as error:
        text = str(error).removeprefix(f"{_SAMPLING}: ")
        faults.append(Fault(_SAMPLING, text, "local"))
    for name, folder in config.constraint.reward_classifiers.items():
        if not (Path(folder) / "config.json").is_file():
            text = f"no classifier is in {folder!r}, config.json is missing"
            faults.append(Fault(f"constraint.reward_classifiers.{name}", text, "local"))
    folder = router.capture.folder
    if folder and not _can_be_made(Path(folder).absolute()):
        faults.append(Fault("router.capture.folder", f"{folder!r} cannot be written to", "local"))
    return faults


def _can_be_made(folder: Path) -> bool:
    """Return whether files can be written into a folder, which is made with those above it."""
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # one of the packages that it is in
        return False


def _least_memory_faults(
    config: Models, placements: Sequence[Placement], cluster: Cluster
) -> list[Fault]:
    """Find the models that cannot fit by the sizes of their files alone."""
    try:
        ranks = {
            section: least_rank_bytes(model, section)
            for section, model in config.models_here.items()
        }
    except ValueError as error:
        return [error if isinstance(error, Fault) else Fault("", str(error))]
    return memory_faults(config, ranks, placements, cluster)


def _port_faults(host: str, port: int) -> list[Fault]:
    """Find the fault that keeps a server from listening on `host` and `port`, if there is one."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        text = f"{host!r} is no address ({error.strerror})"
        return [Fault("http_options.host", text, "port")]
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            text = f"{port} is in use on {host}; stop what listens there"
            return [Fault("http_options.port", text, "port")]
        text = f"cannot listen on {host}, port {port} ({error.strerror})"
        return [Fault("http_options", text, "port")]
    return []


if __name__ == "__main__":  # the module's name invites to run it
    sys.stderr.write("error: the command is `python -m deployments.config --check FILE`\n")
    sys.exit(2)
