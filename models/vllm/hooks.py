"""Finds the vLLM that is installed, and checks that it has what the back-end builds on.

Most of these parts are vLLM's own affair, and change between releases without notice. So one
release is served, and each part is looked for before a model is loaded. Also sets the environment
that vLLM reads on import: call `require_vllm` before anything imports it.
"""

from __future__ import annotations

import importlib
import inspect
import os
from dataclasses import fields, is_dataclass
from typing import Any

from models.config import EngineConfig

VERSION = "0.32.0"

# Parts by module and path, with the parameters or fields that are given to each.
HOOKS: dict[tuple[str, str], tuple[str, ...]] = {
    ("torch.cpu", "_init_amx"): (),
    ("vllm.engine.arg_utils", "EngineArgs.create_engine_config"): (),
    ("vllm.config", "set_current_vllm_config"): ("vllm_config",),
    ("vllm.distributed.parallel_state", "destroy_model_parallel"): (),
    ("vllm.distributed.parallel_state", "model_parallel_is_initialized"): (),
    ("vllm.forward_context", "set_forward_context"): (
        "attn_metadata",
        "vllm_config",
        "num_tokens",
        "cudagraph_runtime_mode",
        "batch_descriptor",
        "slot_mapping",
    ),
    ("vllm.v1.attention.backend", "CommonAttentionMetadata"): (
        "query_start_loc",
        "query_start_loc_cpu",
        "seq_lens",
        "seq_lens_cpu_upper_bound",
        "num_reqs",
        "num_actual_tokens",
        "max_query_len",
        "max_seq_len",
        "block_table_tensor",
        "slot_mapping",
        "causal",
        "positions",
        "is_prefilling",
    ),
    ("vllm.v1.attention.backends.utils", "resolve_kv_cache_layout"): (
        "vllm_config",
        "supported_layouts",
        "kv_cache_specs",
    ),
    ("vllm.v1.core.kv_cache_utils", "get_kv_cache_groups"): ("vllm_config", "kv_cache_spec"),
    ("vllm.v1.core.kv_cache_utils", "get_kv_cache_config_from_groups"): (
        "vllm_config",
        "kv_cache_groups",
        "available_memory",
    ),
    ("vllm.v1.cudagraph_dispatcher", "CudagraphDispatcher.dispatch"): (
        "num_tokens",
        "has_lora",
        "num_active_loras",
    ),
    ("vllm.lora.request", "LoRARequest"): ("lora_name", "lora_int_id", "lora_path"),
    ("vllm.v1.worker.lora_model_runner_mixin", "LoRAModelRunnerMixin._set_active_loras"): (
        "prompt_lora_mapping",
        "token_lora_mapping",
        "lora_requests",
    ),
    ("vllm.v1.worker.lora_model_runner_mixin", "LoRAModelRunnerMixin.add_lora"): ("lora_request",),
    ("vllm.v1.worker.lora_model_runner_mixin", "LoRAModelRunnerMixin.maybe_remove_all_loras"): (),
    ("vllm.v1.worker.utils", "AttentionGroup.build_metadata"): ("common_attn_metadata",),
    ("vllm.v1.worker.gpu_worker", "Worker"): (
        "vllm_config",
        "local_rank",
        "rank",
        "distributed_init_method",
        "is_driver_worker",
    ),
    ("vllm.v1.worker.gpu_worker", "Worker.init_device"): (),
    ("vllm.v1.worker.gpu_worker", "Worker.load_model"): (),
    ("vllm.v1.worker.gpu_worker", "Worker.get_kv_cache_spec"): (),
    ("vllm.v1.worker.gpu_worker", "Worker.get_supported_kv_cache_layouts"): (),
    ("vllm.v1.worker.gpu_worker", "Worker.set_kv_cache_layout"): ("kv_cache_layout",),
    ("vllm.v1.worker.gpu_worker", "Worker.determine_available_memory"): (),
    ("vllm.v1.worker.gpu_worker", "Worker.initialize_from_config"): ("kv_cache_config",),
    ("vllm.v1.worker.gpu_worker", "Worker.compile_or_warm_up_model"): (),
}


def require_vllm(config: EngineConfig) -> None:
    """Set vLLM's environment for the engine of `config`, and check the vLLM that is here.

    Raises:
        ValueError: it is not installed, is another release, or lacks a part; says which.
    """
    _set_environment(config)
    try:
        found = importlib.import_module("vllm").__version__
    except ImportError as error:
        raise ValueError(
            f"engine vllm needs vLLM {VERSION}, which cannot be imported here ({error}): "
            "see deployments/docs/vllm-engine.md"
        ) from None
    if missing := missing_hooks():
        raise ValueError(
            f"engine vllm is made for vLLM {VERSION}; {found} is here, and lacks "
            f"{', '.join(missing)}"
        )
    if found.split("+")[0] != VERSION:
        raise ValueError(f"engine vllm is made for vLLM {VERSION}, {found} is installed here")


def missing_hooks() -> list[str]:
    """Return the parts of the installed vLLM that are gone, or take other parameters."""
    return [
        f"{path} of {module}" + (f" with {', '.join(lacking)}" if lacking else "")
        for (module, path), names in HOOKS.items()
        if (lacking := _lacking(module, path, names)) is not None
    ]


def _lacking(module: str, path: str, names: tuple[str, ...]) -> list[str] | None:
    """Names that a part does not take; empty: there is no such part; None: all is there."""
    try:
        part: Any = importlib.import_module(module)
        for name in path.split("."):
            part = getattr(part, name)
    except (ImportError, AttributeError):
        return []
    if is_dataclass(part):
        taken = {field.name for field in fields(part)}
    else:
        taken = set(inspect.signature(part).parameters)
    return [name for name in names if name not in taken] or None


def _set_environment(config: EngineConfig) -> None:
    settings = {
        # Sums, draws and drafts are ours; the older runner has the parts that are used of it.
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CONFIGURE_LOGGING": "0",  # lines go where this process's others go
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "",
    }
    if config.batch_invariant:
        settings["VLLM_BATCH_INVARIANT"] = "1"
    os.environ.update(settings)
