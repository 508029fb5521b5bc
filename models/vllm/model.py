"""A model, or a rank's part of it, that vLLM's worker holds in this process.

Of vLLM there are its layers, its kernels, its loader and its layout of the KV cache. Its scheduler,
sampler, server and processes are not here. All ranks of a model make one of these, each in its own
process, and the process group is ours.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import set_current_vllm_config
from vllm.distributed.parallel_state import (
    destroy_model_parallel,
    model_parallel_is_initialized,
)
from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
from vllm.v1.core.kv_cache_utils import (
    get_kv_cache_config_from_groups,
    get_kv_cache_groups,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from models.checkpoint.adapters import check_adapters
from models.checkpoint.architecture import refuse_unsupported
from models.checkpoint.loader import read_config
from models.checkpoint.memory_estimate import vllm_weights
from models.checkpoint.stored_weights import check_weights
from models.checkpoint.token_ids import read_token_ids
from models.config import EngineConfig
from models.parallel.ranks import TensorParallel
from models.vllm.adapters import Adapters
from models.vllm.arguments import vllm_config
from models.vllm.backend import VllmBackend


class VllmModel:
    """Implements `ModelLayers` around vLLM's worker.

    Args:
        config: what to load.
        ranks: those that share the model.

    Attributes:
        block_size: tokens of a KV block, which vLLM's kernel takes.
        kv_bytes_per_token: bytes of one token's keys and values, on this rank.
        weight_bytes: of this rank's part.
        num_weights: numbers in it; 0: the files are not here.

    Raises:
        ValueError: there is no checkpoint, or vLLM or the loop around it cannot serve it.
    """

    def __init__(self, config: EngineConfig, ranks: TensorParallel | None) -> None:
        hf_config = read_config(config.model_path)
        refuse_unsupported(hf_config, config)
        check_weights(Path(config.model_path))
        check_adapters(config)
        ids = read_token_ids(config, hf_config)
        self.num_columns, self.drawable, self.eos_ids = ids.num_columns, ids.drawable, ids.eos_ids
        self._config = vllm_config(config)
        self._lora_modules = config.lora_modules
        _refuse(self._config.model_config)
        group = _group_number(ranks)
        self._is_on_cpu = self._config.device_config.device_type == "cpu"
        if self._is_on_cpu:
            torch.cpu._init_amx()  # vLLM's attention takes AMX unasked: SIGILL if nobody has asked
        self._worker = _make_worker(self._config, 0 if ranks is None else ranks.rank, group)
        if self._config.model_config.is_moe and ranks is None:
            _make_groups_anew()
        with set_current_vllm_config(self._config):
            self._worker.init_device()
            _forget_names(group)
            _load(self._worker, config.model_path)
        specs = self._worker.get_kv_cache_spec()
        layout = resolve_kv_cache_layout(
            self._config, [self._worker.get_supported_kv_cache_layouts()], [*specs.values()]
        )
        self._worker.set_kv_cache_layout(layout.name)
        self._groups = get_kv_cache_groups(self._config, specs)
        self.block_size = _block_size(self._groups)
        page_bytes = sum(spec.page_size_bytes for spec in specs.values())
        self.kv_bytes_per_token = page_bytes // self.block_size
        # vLLM packs weights for a CPU out of the layers' sight: the files tell.
        self.weight_bytes, self.num_weights = vllm_weights(config, hf_config)

    def share_bytes(self) -> int:
        """Measure the bytes that `gpu_memory_utilization` leaves for keys and values here."""
        with set_current_vllm_config(self._config):
            return self._worker.determine_available_memory()

    def backend(self, num_blocks: int) -> VllmBackend:
        """Return the back-end over so many KV blocks, with its graphs. Call once."""
        cache = self._config.cache_config
        cache.num_gpu_blocks_override = num_blocks + 1  # one more is nobody's
        pages = get_kv_cache_config_from_groups(self._config, self._groups, _ROOM)
        pages.kv_cache_layout = cache.kv_cache_layout
        cache.num_gpu_blocks = num_blocks + 1
        with set_current_vllm_config(self._config):
            if self._is_on_cpu:
                self._worker.determine_available_memory()  # that is when vLLM compiles for a CPU
            self._worker.initialize_from_config(pages)
            self._worker.compile_or_warm_up_model()
        runner = self._worker.model_runner
        adapters = Adapters(runner, self._lora_modules)
        return VllmBackend(self._config, runner, adapters, num_blocks, self.block_size)

    # --- what runners look at

    def products(self) -> list[nn.Module]:
        """See `ModelLayers`."""
        return [layer for layer in self._layers.modules() if hasattr(layer, "quant_method")]

    @property
    def hidden(self) -> Tensor | None:
        """See `ModelLayers`."""
        return None

    @property
    def _layers(self) -> Any:
        return self._worker.model_runner.get_model()


_ROOM = 1 << 60  # bytes: the number of blocks is given


def _group_number(ranks: TensorParallel | None) -> int:
    """Return a number that the ranks of a model share, and no other's here; 0 for one rank."""
    return 0 if ranks is None else ranks.least(1 + secrets.randbits(40))


def _forget_names(group: int) -> None:
    """Unlink the memory that ranks on a CPU share: all have it, and a killed one would leave it."""
    for path in Path("/dev/shm").glob(f"{group}-*-cpushm_*"):
        path.unlink(missing_ok=True)


def _make_worker(config: Any, rank: int, group: int) -> Any:
    """Return vLLM's worker for this rank; our process group is there, or is made for one rank.

    vLLM names what ranks share by the end of the address, and connects there for one rank only.
    """
    if config.device_config.device_type == "cpu":
        from vllm.v1.worker.cpu_worker import CPUWorker as Worker
    else:
        from vllm.v1.worker.gpu_worker import Worker
    return Worker(
        vllm_config=config,
        local_rank=0,  # a process sees its own GPU only
        rank=rank,
        distributed_init_method=f"tcp://127.0.0.1:{group}",
        is_driver_worker=rank == 0,
    )


def _make_groups_anew() -> None:
    """Forget the groups of a model before this one, which has none for experts if it was dense.

    Models look for their groups as they run, and find those of one rank alike.
    """
    if model_parallel_is_initialized():
        destroy_model_parallel()


def _load(worker: Any, path: str) -> None:
    """Have the worker load the model.

    Raises:
        ValueError: vLLM has no layers for it, or not for such a config or such weights.
    """
    try:
        worker.load_model()
    except (AssertionError, ValueError, NotImplementedError) as error:
        raise ValueError(f"vLLM cannot serve model_path {path!r}: {error}") from error


def _refuse(model: Any) -> None:
    """Refuse models that take more than tokens and their positions.

    Raises:
        ValueError: names it.
    """
    name = model.hf_config.model_type
    if model.is_multimodal_model:
        raise ValueError(f"model type {name!r} cannot be served by vllm: it reads more than text")
    if model.uses_mrope:
        raise ValueError(f"model type {name!r} cannot be served by vllm: positions of three axes")


def _block_size(groups: Sequence[Any]) -> int:
    """Return the tokens of a block, the same in all layers.

    Raises:
        ValueError: layers keep other things than keys and values by position.
    """
    specs = [group.kv_cache_spec for group in groups]
    if len(specs) != 1 or not isinstance(specs[0], FullAttentionSpec | SlidingWindowSpec):
        names = ", ".join(sorted({type(spec).__name__ for spec in specs}))
        raise ValueError(
            f"the model keeps {names or 'no cache'}: sessions are rolled back by length, which "
            "needs keys and values by position, alike in all layers"
        )
    return specs[0].block_size
