"""`python -m deployments.config --check FILE`: explains a Serve config of ours, and judges it.

What can be told without loading torch is told first; a config that is refused for that ends there.
Only of models whose files are here are sizes computed. Exit status 0: it could be served here.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from deployments.config.dotted_keys import assignments
from deployments.config.explain import ModelSizes, admission_notes, drafting_notes, explanation
from deployments.config.memory import RankBytes, memory_faults
from deployments.config.model_files import file_faults
from deployments.config.model_paths import resolve_model
from deployments.config.preflight import key_file_faults, sentence
from deployments.config.schema import AppConfig, ModelConfig
from deployments.config.serve_file import ServeFile, one_line, read_serve_file
from deployments.config.shortages import Cluster, shortages


@dataclass(kw_only=True)
class Findings:
    """What was found out; `faults` decide."""

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sizes: dict[str, ModelSizes] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)


def check(served: ServeFile, cluster: Cluster, *, is_local: bool) -> Findings:
    """Everything that can be known without loading weights; the slow part only if all else is well.

    Args:
        served: the file.
        cluster: this machine, or the cluster that is connected.
        is_local: the service would run on this machine alone, so files and port must be here.
    """
    findings = Findings(notes=admission_notes(served.config, served.placements, served.router))
    findings.notes += drafting_notes(served.config)
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
    return faults + _listening_faults(*served.http)


def _listening_faults(host: str, port: int) -> list[str]:
    """What keeps a server from listening there."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        return [f"http_options.host: {host!r} is no address ({error.strerror})"]
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return [f"http_options.port: {port} is in use on {host}; stop what listens there"]
        return [f"http_options: cannot listen on {host}, port {port} ({error.strerror})"]
    return []


def _note_unknown(config: AppConfig, findings: Findings) -> None:
    for section, model in _models(config):
        try:
            resolve_model(model.model_path, model.dtype, f"{section}.model_path")
        except ValueError as error:
            findings.unknown[section] = str(error)
        else:
            findings.unknown[section] = "not computed, because the config is refused"


def _measure(config: AppConfig, gpu_bytes: Sequence[int], findings: Findings) -> None:
    """Sizes of models whose files are here. Imports transformers and torch: seconds."""
    from models.checkpoint.memory_estimate import memory_estimate
    from models.gguf.folder import source_of
    from models.kv.budget import num_kv_blocks

    for section, model in _models(config.resolved()):
        engine = model.engine_config()
        try:
            taken = memory_estimate(engine)
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
            source=source_of(Path(model.model_path)),
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
    from deployments.config.cluster import connected_cluster, this_machine

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
        return _refuse(f"--address {options.address}: no Ray cluster: {one_line(error)}")
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


if __name__ == "__main__":
    sys.exit(main())
