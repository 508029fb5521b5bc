"""vLLM's config of a model, made from ours."""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
from vllm.engine.arg_utils import EngineArgs

from models.config import EngineConfig
from models.vllm.adapters import num_slots

MAX_SEQUENCES = 256  # sessions in one call of the layers; vLLM's kernels make room for so many
_AUTO_BLOCK = 64  # tokens; most of vLLM's kernels take it


def vllm_config(config: EngineConfig) -> Any:
    """Return vLLM's config of the model of `config`, one rank of it in this process.

    Raises:
        ValueError: vLLM cannot serve the model like this, or nothing compiles here.
    """
    is_eager = config.graphs == "off"
    if not is_eager and torch.device(config.device).type == "cpu":
        _require_compiler()
    try:
        return EngineArgs(
            model=config.model_path,
            skip_tokenizer_init=True,
            trust_remote_code=False,
            dtype=config.dtype,
            max_model_len=config.max_model_len,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=min(MAX_SEQUENCES, config.max_num_batched_tokens),
            block_size=_AUTO_BLOCK if config.block_size == "auto" else config.block_size,
            # The pool's blocks are counted here; vLLM's own prefix cache and scheduler do not run.
            enable_prefix_caching=False,
            gpu_memory_utilization=config.gpu_memory_utilization or 1.0,
            kv_cache_memory_bytes=None if config.gpu_memory_utilization else 1,
            disable_hybrid_kv_cache_manager=True,
            tensor_parallel_size=config.tensor_parallel_size,
            distributed_executor_backend="external_launcher",
            async_scheduling=False,
            disable_log_stats=True,
            enforce_eager=is_eager,
            enable_lora=bool(config.lora_modules),
            max_loras=num_slots(config),
            max_lora_rank=config.max_lora_rank,
            # Passes of any shape have a graph for what lies between attention; on a CPU vLLM
            # makes none, and compiles the layers for any number of rows.
            compilation_config={} if is_eager else {"cudagraph_mode": "PIECEWISE"},
        ).create_engine_config()
    except (ValueError, OSError, NotImplementedError) as error:
        raise ValueError(f"vLLM cannot serve model_path {config.model_path!r}: {error}") from error


def _require_compiler() -> None:
    """Look for the C++ compiler that torch compiles layers with.

    Raises:
        ValueError: there is none; says what to do without.
    """
    name = os.environ.get("CXX", "g++")
    if shutil.which(name) is None:
        raise ValueError(
            f"engine vllm compiles the layers with {name}, which is not here: install it, "
            "or set graphs to off"
        )
