"""`python -m deployments.config --check FILE`: explains a Serve config of ours, and judges it.

What can be told without loading torch is told first; a config that is refused for that ends there.
Only of models whose files are here are sizes computed. Exit status 0: it could be served here.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from deployments.config import AppConfig, ModelConfig, resolve_folder
from deployments.dotted_keys import assignments, put
from deployments.explain import ModelSizes, explanation
from deployments.memory import RankBytes, memory_faults
from deployments.model_files import file_faults
from deployments.placement import Placement, placements_of
from deployments.preflight import key_file_faults, sentence
from deployments.shortages import Cluster, shortages

IMPORT_PATH = "deployments.app:build"
_SECTIONS = tuple(AppConfig.model_fields)
Tree = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ServeFile:
    """A Serve config file of ours, validated."""

    tree: Tree
    config: AppConfig
    placements: list[Placement]

    @property
    def http(self) -> tuple[str, int]:
        """Address and port it would listen at."""
        options = self.tree.get("http_options") or {}
        return str(options.get("host", "0.0.0.0")), int(options.get("port", 8000))


@dataclass(kw_only=True)
class Findings:
    """What was found out; `faults` decide."""

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sizes: dict[str, ModelSizes] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)


def read_serve_file(path: Path, changes: dict[str, Any] | None = None) -> ServeFile:
    """Parse, change and validate a file.

    Raises:
        ValueError: one message: it is no Serve config, not ours, or a key is wrong.
    """
    from ray.serve.schema import ServeDeploySchema

    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"cannot be read: {_one_line(error)}") from None
    if not isinstance(tree, dict) or not isinstance(tree.get("applications"), list):
        raise ValueError("this is no Serve config file: it has no list of applications")
    application = _our_application(tree)
    for key, value in (changes or {}).items():
        _change(tree, application, key.split("."), value)
    if unknown := unknown_keys(tree):
        raise ValueError("; ".join(f"unknown key {key!r}" for key in unknown))
    try:
        ServeDeploySchema.model_validate(tree)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()
        )
        raise ValueError(faults) from None
    config = AppConfig.model_validate(application.get("args") or {})
    placements = placements_of(config, application.get("deployments") or [])
    return ServeFile(tree=tree, config=config, placements=placements)


def unknown_keys(tree: Tree) -> list[str]:
    """Keys outside `args` that Serve would leave out without a word, by their path."""
    from ray.serve import schema
    from ray.serve.config import AutoscalingConfig

    sections: list[tuple[str, Any, Any]] = [
        ("", tree, schema.ServeDeploySchema),
        ("http_options.", tree.get("http_options"), schema.HTTPOptionsSchema),
        ("logging_config.", tree.get("logging_config"), schema.LoggingConfig),
    ]
    for application in tree["applications"]:
        sections.append(("applications.", application, schema.ServeApplicationSchema))
        for options in application.get("deployments") or []:
            name = f"deployments.{options.get('name')}."
            actor, scaling = options.get("ray_actor_options"), options.get("autoscaling_config")
            sections.append((name, options, schema.DeploymentSchema))
            sections.append((f"{name}ray_actor_options.", actor, schema.RayActorOptionsSchema))
            sections.append((f"{name}autoscaling_config.", scaling, AutoscalingConfig))
    return [
        f"{path}{key}"
        for path, values, model in sections
        if isinstance(values, dict)
        for key in values
        if key not in model.model_fields
    ]


def _our_application(tree: Tree) -> Tree:
    ours = [
        one
        for one in tree["applications"]
        if isinstance(one, dict) and one.get("import_path") == IMPORT_PATH
    ]
    if len(ours) != 1:
        raise ValueError(
            f"{len(ours)} of its applications have import_path {IMPORT_PATH}, must be 1"
        )
    return ours[0]


def _change(tree: Tree, application: Tree, path: list[str], value: Any) -> None:
    """Put a value where its key belongs: a deployment's option, `args`, or the file's top."""
    if path[0] in _SECTIONS:
        put(application, ["args", *path], value)
    elif path[0][:1].isupper():
        deployments = application.setdefault("deployments", [])
        options = next((one for one in deployments if one.get("name") == path[0]), None)
        if options is None:
            options = {"name": path[0]}
            deployments.append(options)
        put(options, path[1:] or ["name"], value)
    else:
        put(tree, path, value)


def check(served: ServeFile, cluster: Cluster, *, is_local: bool) -> Findings:
    """Everything that can be known without loading weights; the slow part only if all else is well.

    Args:
        served: the file.
        cluster: this machine, or the cluster that is connected.
        is_local: the service would run on this machine alone, so files and port must be here.
    """
    findings = Findings()
    missing = shortages(served.placements, cluster)
    if cluster.may_grow:
        findings.notes += [f"not there yet, but the cluster may grow: {one}" for one in missing]
    else:
        findings.faults += missing
    files = file_faults(served.config)
    if is_local:
        files += _local_faults(served)
        findings.faults += files
    else:
        findings.notes += [f"on this machine {one}; the nodes must have it" for one in files]
    if files or findings.faults:
        _note_unknown(served.config, findings)
        return findings
    gpu_bytes = visible_gpu_bytes() if is_local else []
    _measure(served.config, gpu_bytes, findings)
    if not findings.faults:
        ranks = {
            section: RankBytes(
                weights=sizes.weight_bytes,
                kv=(sizes.kv_tokens or 0) * sizes.kv_bytes_per_token,
            )
            for section, sizes in findings.sizes.items()
        }
        found = memory_faults(served.config, ranks, served.placements, cluster, gpu_bytes)
        (findings.notes if cluster.may_grow else findings.faults).extend(found)
    return findings


def _local_faults(served: ServeFile) -> list[str]:
    faults = key_file_faults(served.config)
    host, port = served.http
    if not _is_free(host, port):
        faults.append(f"http_options.port: {port} is in use on {host}; stop what listens there")
    return faults


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _note_unknown(config: AppConfig, findings: Findings) -> None:
    for section, model in _models(config):
        try:
            resolve_folder(model.model_path, f"{section}.model_path")
        except ValueError as error:
            findings.unknown[section] = str(error)
        else:
            findings.unknown[section] = "not computed, because the config is refused"


def _measure(config: AppConfig, gpu_bytes: Sequence[int], findings: Findings) -> None:
    """Sizes of models whose files are here. Imports transformers and torch: seconds."""
    from deployments.leader import engine_config
    from models.footprint import footprint
    from models.kv_budget import num_kv_blocks

    for section, model in _models(config.resolved()):
        engine = engine_config(model)
        try:
            taken = footprint(engine)
            num_blocks: int | None = None
            if model.gpu_memory_utilization is None:
                num_blocks = num_kv_blocks(engine, taken.kv_bytes_per_token)
            elif gpu_bytes:
                left = int(min(gpu_bytes) * model.gpu_memory_utilization) - taken.weight_bytes
                num_blocks = max(0, left) // (taken.kv_bytes_per_token * model.block_size)
        except ValueError as error:
            findings.faults.append(f"{section}: {error}")
            findings.unknown[section] = "the model cannot be served"
            continue
        findings.sizes[section] = ModelSizes(
            num_parameters=taken.num_parameters,
            weight_bytes=taken.weight_bytes,
            kv_bytes_per_token=taken.kv_bytes_per_token,
            kv_tokens=None if num_blocks is None else num_blocks * model.block_size,
        )


def _models(config: AppConfig) -> list[tuple[str, ModelConfig]]:
    models = [("target", config.target), ("draft", config.draft)]
    return [(section, model) for section, model in models if model is not None]


def visible_gpu_bytes() -> list[int]:
    """Memory of each of this machine's GPUs, by NVIDIA's library; empty without one."""
    import ray._private.thirdparty.pynvml as nvml

    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return [int(nvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles]
    finally:
        nvml.nvmlShutdown()


def look_at(address: str) -> tuple[Cluster, Callable[[], None]]:
    """This machine ("local") or the cluster at `address`, and what to call in the end."""
    from deployments.cluster_view import connected_cluster, this_machine

    if address == "local":
        return this_machine(), lambda: None
    import ray

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    return connected_cluster(), ray.shutdown


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    options = _parser().parse_args(argv)
    try:
        served = read_serve_file(options.file, assignments(options.changes))
    except ValueError as error:
        return _refuse(f"{options.file}: {error}")
    if options.output is not None:
        text = yaml.safe_dump(served.tree, sort_keys=False)
        options.output.write_text(text, encoding="utf-8")
    if not options.check:
        return 0
    try:
        cluster, leave = look_at(options.address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        return _refuse(f"--address {options.address}: no Ray cluster: {_one_line(error)}")
    try:
        findings = check(served, cluster, is_local=options.address == "local")
    finally:
        leave()
    lines = explanation(served.config, served.placements, findings.sizes, findings.unknown)
    where = "this machine" if options.address == "local" else f"the cluster at {options.address}"
    _say([f"{options.file}, for {where}:", *lines, *(f"note: {one}" for one in findings.notes)])
    if findings.faults:
        return _refuse(f"{options.file} {sentence(findings.faults, served.placements, cluster)}")
    host, port = served.http
    _say([f"ok: it can be served here, on {host}:{port}"])
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deployments.config",
        description="Explain and check a Serve config file of Outrider, or write a changed one.",
    )
    parser.add_argument("file", type=Path, help="a Serve config file, like configs/demo.yaml")
    parser.add_argument(
        "changes",
        nargs="*",
        metavar="KEY=VALUE",
        help="changes made first: target.max_sessions=8, Draft.num_replicas=2, http_options.port=1",
    )
    parser.add_argument("--check", action="store_true", help="say whether it could be served here")
    parser.add_argument(
        "--address",
        default=os.environ.get("RAY_ADDRESS", "local"),
        help="the Ray cluster to look at (auto: the one running here); default: RAY_ADDRESS, else "
        "local: this machine alone",
    )
    parser.add_argument("--output", type=Path, help="write the changed file here, for `serve run`")
    return parser


def _say(lines: Sequence[str]) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _refuse(message: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    return 1


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
