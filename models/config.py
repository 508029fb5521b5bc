"""What one engine process must know of its model. Standard library only.

It holds what an operator decides; sizes that follow from the checkpoint (layers, heads,
vocabulary) are read from the checkpoint. Values are checked here once and frozen; whether they
fit the checkpoint is checked by `models/checkpoint/loader.py` when it is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

DTYPE_NAMES = ("float32", "bfloat16", "float16")
ATTENTION_NAMES = ("auto", "varlen", "reference")
GRAPH_NAMES = ("auto", "off", "eager")
QUANTIZATION_NAMES = ("int8",)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One model, on one device or shared by several ranks.

    Attributes:
        model_path: directory of a Hugging Face checkpoint, or its name on the hub.
        device: where weights and KV live, as torch spells it: "cpu", "cuda", "cuda:1".
        dtype: of weights, activations and KV: "float32", "bfloat16" or "float16".
        max_model_len: tokens of prompt and completion together that one session may hold; at
            most what the checkpoint was made for.
        kv_cache_tokens: capacity of the KV pool, in tokens of all sessions together.
        kv_cache_memory: the same in bytes of each rank, in place of `kv_cache_tokens`.
        gpu_memory_utilization: or as the share of the device's memory that weights and KV take
            together.
        block_size: tokens per KV block, the unit in which the pool is handed out. The compiled CPU
            kernels want a multiple of 16.
        max_batch_rows: rows of one forward pass; longer prompts come in chunks.
        max_prefill_slowdown: how many times longer than without others' prompts a running stream's
            gap between tokens may be; above 1. Chunks of prompts are cut to keep it.
        num_threads: threads of one CPU pass; None leaves torch's own choice.
        tensor_parallel_size: ranks (processes, one device each) that share the model.
        enable_prefix_caching: keep the KV of committed tokens for sessions that begin alike.
        attention: "auto" takes a paged kernel on a GPU that has one, and compiled kernels on a CPU
            (`cpu.setup`); elsewhere torch's own operations attend, as always with "reference";
            "varlen" insists on the paged kernel, and on a CPU takes a slow stand-in for it.
        graphs: "auto" replays small passes from CUDA graphs where the kernel is used; "off" does
            not; "eager" pads and buffers as graphs do but records nothing, to look for errors.
        graph_memory_mib: device memory that captured graphs may take.
        vocab_size: token ids from here on are never drawn: for a draft whose target does not have
            them. None: all that the checkpoint's tokenizer has.
        quantization: "int8" rounds the linear layers to 8 bits when the model is loaded, on a CPU
            and for one rank; None leaves them in `dtype`.

    Raises:
        ValueError: a value is out of range; the message names field, limit and value.
    """

    model_path: str
    device: str = "cpu"
    dtype: str = "bfloat16"
    max_model_len: int = 2048
    kv_cache_tokens: int = 32768
    kv_cache_memory: int | None = None
    gpu_memory_utilization: float | None = None
    block_size: int = 64
    max_batch_rows: int = 512
    max_prefill_slowdown: float = 2.0
    num_threads: int | None = None
    tensor_parallel_size: int = 1
    enable_prefix_caching: bool = True
    attention: str = "auto"
    graphs: str = "auto"
    graph_memory_mib: int = 2048
    vocab_size: int | None = None
    quantization: str | None = None

    def __post_init__(self) -> None:
        if not self.model_path:
            raise ValueError("model_path must not be empty")
        for name, known in (
            ("dtype", DTYPE_NAMES),
            ("attention", ATTENTION_NAMES),
            ("graphs", GRAPH_NAMES),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise ValueError(f"{field.name} must be at least 1, got {value}")
        if not self.max_prefill_slowdown > 1.0:
            raise ValueError(
                f"max_prefill_slowdown must be above 1, got {self.max_prefill_slowdown:g}"
            )
        if self.kv_cache_tokens < self.block_size:
            raise ValueError(
                f"kv_cache_tokens must be at least block_size ({self.block_size}), "
                f"got {self.kv_cache_tokens}"
            )
        check_quantization(self.quantization, self.device, self.tensor_parallel_size)

    @property
    def num_blocks(self) -> int:
        """Whole blocks within `kv_cache_tokens`; where memory is given, see `kv.budget`."""
        return self.kv_cache_tokens // self.block_size


def check_quantization(name: str | None, device: str, tensor_parallel_size: int) -> None:
    """Whether a model can be loaded like this.

    Raises:
        ValueError: an unknown name, or one that does not go with the device or the ranks.
    """
    if name is None:
        return
    if name not in QUANTIZATION_NAMES:
        raise ValueError(
            f"quantization must be one of {', '.join(QUANTIZATION_NAMES)}, got {name!r}"
        )
    if device.split(":")[0] != "cpu":
        raise ValueError(f"quantization {name} runs on cpu only, got device {device!r}")
    if tensor_parallel_size > 1:
        raise ValueError(
            f"quantization {name} needs tensor_parallel_size 1, got {tensor_parallel_size}"
        )
