"""An operator's settings of one engine process, and the base of every section of a config.

`EngineConfig` is the one class of these values: `deployments/config/schema.py` adds the service's
own keys to it. The reference page of all keys is made of its descriptions, and its defaults are the
only ones. Sizes that follow from the checkpoint (layers, heads, vocabulary) are read from the
checkpoint. Values are checked here once and frozen. `models/checkpoint/loader.py` checks that they
fit the checkpoint when it is loaded. Knows no torch.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic import ByteSize as AnyByteSize

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
ByteSize = Annotated[AnyByteSize, Field(gt=0)]  # bytes, or "2GiB"

DtypeName = Literal["bfloat16", "float16", "float32"]
EngineName = Literal["own", "vllm"]
AttentionName = Literal["auto", "varlen", "reference"]
QuantizationName = Literal["int8", "fp8", "q8", "q4"]
GROUPED: dict[str, Literal[4, 8]] = {"q8": 8, "q4": 4}  # bits of codes in groups, on a CPU
# Of a weight with its share of scales and minima.
BITS_A_WEIGHT = {"int8": 8.0, "fp8": 8.0, "q8": 8.5, "q4": 5.0}
DTYPE_NAMES: tuple[DtypeName, ...] = get_args(DtypeName)

_CPU_BLOCK = 64  # tokens
GPU_BLOCKS = (64, 128, 256)  # sizes that auto tries on a GPU, in order
_KV_SIZES = ("kv_cache_tokens", "kv_cache_memory", "gpu_memory_utilization")


class Section(BaseModel):
    """A frozen group of values that refuses unknown keys and numbers that are not finite.

    It refuses a truth value for a number, which would pass for 1.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _check_kind(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and annotation is not bool:
            raise ValueError("must be no truth value")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("must be a finite number")
        return value


class EngineConfig(Section):
    """One model, on one device or shared by several ranks.

    Raises:
        ValueError: a value is out of range; the message names field, limit and value.
    """

    model_path: str = Field(
        min_length=1,
        description="checkpoint folder or GGUF file, from here, else from the repo's root; the "
        "name of a model that `python -m models.fetch` has fetched; or org/name on the Hugging "
        "Face hub, fetched by each node into HF_HOME",
    )
    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="of a model of the hub: a commit, which never changes, or a tag or branch, "
        "whose commit is looked up once for all nodes when the service is built; null: main",
    )
    engine: EngineName = Field(
        default="own",
        description="what computes the model's passes: own, for CPUs and dense models on GPUs; or "
        "vllm, the layers and kernels of vLLM, which must be installed, for what only it has: "
        "LoRA, and on GPUs mixtures of experts, AWQ and GPTQ; on a CPU own is faster",
    )
    dtype: DtypeName = Field(default="bfloat16", description="of weights, activations and KV cache")
    device: str = Field(
        default="cpu",
        pattern=r"^(cpu|cuda)(:\d+)?$",
        description="torch device of a rank: cpu, cuda",
    )
    max_model_len: PositiveInt = Field(
        default=2048,
        description="tokens of prompt and completion together; at most the checkpoint's own",
    )
    kv_cache_tokens: PositiveInt | None = Field(
        default=16384,
        description="tokens whose KV is kept, all sessions together; of this and the next two "
        "keys at most one is given, the others are null",
    )
    kv_cache_memory: ByteSize | None = Field(
        default=None, description="the same as memory of each rank: 2GiB, 512MiB, or bytes"
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="the same as a share of each GPU's memory, with the weights, graphs and what "
        "passes need for a while, which is measured; other processes on it have the rest",
    )
    block_size: PositiveInt | Literal["auto"] = Field(
        default="auto",
        description="tokens per KV block; auto: 64 on a CPU, on a GPU what the kernel that is "
        "found there takes, 256 where it is FlashAttention 2",
    )
    max_num_batched_tokens: PositiveInt = Field(
        default=512,
        description="tokens of all sessions in one forward pass; longer prompts come in chunks",
    )
    max_prefill_slowdown: Annotated[float, Field(gt=1)] = Field(
        default=2.0,
        description="how many times longer the gaps of a running stream may be while others' "
        "prompts are computed",
    )
    attention: AttentionName = Field(
        default="auto",
        description="auto: a paged kernel on a GPU that has one, compiled kernels on a CPU, else "
        "torch's own operations; varlen insists on the first (slow on a CPU), reference takes the "
        "last",
    )
    graphs: Literal["auto", "off", "eager"] = Field(
        default="auto",
        description="CUDA graphs of small passes where the paged kernel is used; off: none; eager: "
        "padded as graphs are but not recorded, to look for errors",
    )
    graph_memory_mib: PositiveInt = Field(
        default=2048,
        description="MiB of device memory that these graphs may take; the largest are given up",
    )
    num_threads: Annotated[PositiveInt, Field(le=1024)] = Field(
        default=1, description="torch threads of a rank on a CPU; more than free cores slows all"
    )
    tensor_parallel_size: Annotated[PositiveInt, Field(le=64)] = Field(
        default=1, description="ranks (processes, one device each) that share the model"
    )
    enable_prefix_caching: bool = Field(
        default=True, description="sessions that begin alike share KV blocks"
    )
    vocab_size: PositiveInt | None = Field(
        default=None,
        description="token ids from this one on are never sampled; null: all that the tokenizer "
        "has, for a draft those of the target",
    )
    quantization: QuantizationName | None = Field(
        default=None,
        description="linear layers are rounded when loaded; q8, q4: weights to 8.5 or 5 bits in "
        "groups of 32, inputs to 8, on a CPU for one rank; int8: weights only, on GPUs for Llama, "
        "Mistral, Qwen2 and Qwen3; fp8: weights and inputs, for these on GPUs from L4, RTX 40 and "
        "H100 on (one that is published as FP8-dynamic needs no key); the target's text is then "
        "the rounded model's, a draft's changes its speed only; null: as the weights are stored, "
        "which a CPU keeps of GGUF, AWQ and GPTQ",
    )

    heads: str | None = Field(
        default=None,
        min_length=1,
        description="of a target: folder of an MTP head, an EAGLE-3 head or of Medusa heads, which "
        "draft in its own process, with each verdict; checkpoint: the MTP layer that lies in "
        "model_path itself; on a CPU",
    )

    early_exit: int | None = Field(
        default=None,
        ge=1,
        description="of a target: so many of its first layers draft in its own process, with its "
        "last norm and output layer; pays where the checkpoint was trained for it; in place of "
        "heads; on a CPU",
    )

    batch_invariant: bool = Field(
        default=False,
        description="on a GPU: a row's logits are the same bits whatever is computed beside it, so "
        "that a seed has one text; for Llama, Mistral, Qwen2 and Qwen3, by products of our own, "
        "which are slower than cuBLAS's; the ready line says what the self-test found; on a CPU it "
        "is so anyway",
    )

    lora_modules: dict[Annotated[str, Field(min_length=1, max_length=128)], str] = Field(
        default_factory=dict,
        description="of a target with engine vllm: LoRA adapters as {NAME: FOLDER}, in the format "
        "of PEFT; all are loaded at the start, and a request whose model is NAME is answered with "
        "that adapter",
    )
    max_lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] = Field(
        default=16, description="of any of these adapters; each takes memory for so many"
    )

    @model_validator(mode="after")
    def _check_kv_size(self) -> Self:
        given = [
            key
            for key in _KV_SIZES
            if key in self.model_fields_set and getattr(self, key) is not None
        ]
        if len(given) > 1:
            raise ValueError(f"give one of {' and '.join(given)}, they say the same thing")
        if self.kv_cache_tokens is None and not given:
            raise ValueError(f"give one of {' and '.join(_KV_SIZES)}")
        if self.kv_cache_tokens is not None and self.kv_cache_tokens < self.block_tokens:
            raise ValueError(
                f"kv_cache_tokens must be at least block_size ({self.block_tokens}), "
                f"got {self.kv_cache_tokens}"
            )
        if self.gpu_memory_utilization is None:
            return self
        if not self.device.startswith("cuda"):
            raise ValueError(
                f"gpu_memory_utilization needs device cuda, not {self.device}; "
                "give kv_cache_tokens or kv_cache_memory"
            )
        return self

    @model_validator(mode="after")
    def _check_quantization(self) -> Self:
        name = self.quantization
        if name is None:
            return self
        is_on_gpu = self.device.split(":")[0] == "cuda"
        if name in GROUPED:
            return self._check_groups(name)
        if not is_on_gpu:
            raise ValueError(
                f"quantization {name} runs on cuda only, got device {self.device!r}; on a CPU q8 "
                "keeps weights at 8 bits"
            )
        if name == "fp8" and self.batch_invariant:
            raise ValueError("batch_invariant is not for quantization fp8: give one of them")
        return self

    def _check_groups(self, name: QuantizationName) -> Self:
        if self.device.split(":")[0] != "cpu":
            raise ValueError(f"quantization {name} runs on cpu only, got device {self.device!r}")
        if self.tensor_parallel_size > 1:
            raise ValueError(
                f"quantization {name} needs tensor_parallel_size 1, got {self.tensor_parallel_size}"
            )
        if self.attention != "auto":
            raise ValueError(f"quantization {name} needs attention auto, got {self.attention!r}")
        if self.dtype == "float16":  # which the compiled kernels do not take
            raise ValueError(f"quantization {name} needs dtype bfloat16 or float32, got 'float16'")
        return self

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.heads is None and self.early_exit is None:
            return self
        name = "early_exit" if self.heads is None else "heads"
        if self.heads is not None and self.early_exit is not None:
            raise ValueError("heads and early_exit both draft in the target: give one of them")
        if self.device.split(":")[0] != "cpu":
            raise ValueError(f"{name} is served on device cpu only so far, got {self.device!r}")
        if self.attention == "varlen":
            raise ValueError(f"{name} is served with attention auto or reference, got 'varlen'")
        return self

    @model_validator(mode="after")
    def _check_engine(self) -> Self:
        if self.engine == "own":
            if self.lora_modules:
                raise ValueError(
                    f"lora_modules is for engine vllm, got {', '.join(self.lora_modules)} with "
                    "engine own: merge an adapter into the weights, or serve it by engine vllm"
                )
            return self
        own_keys: dict[str, object] = {"attention": "auto", "quantization": None}
        own_keys |= {"heads": None, "early_exit": None}
        for key, default in own_keys.items():
            if getattr(self, key) != default:
                raise ValueError(
                    f"{key} is for engine own, got {getattr(self, key)!r} with engine vllm: "
                    "leave it out"
                )
        if self.graphs == "eager":
            raise ValueError("graphs must be auto or off with engine vllm, got 'eager'")
        return self

    def __hash__(self) -> int:
        """Return a hash of all values; the mapping among them has none of its own."""
        return hash(self.model_dump_json())

    @property
    def block_tokens(self) -> int:
        """Tokens per block; where that is auto on a GPU, the largest it may come to be.

        The size that an engine came to is in the config of its `ModelRunner`.
        """
        if self.block_size != "auto":
            return self.block_size
        return _CPU_BLOCK if self.device.split(":")[0] == "cpu" else max(GPU_BLOCKS)

    @property
    def takes_groups(self) -> bool:
        """True where weights that a file has in groups of few bits can stay so.

        That is on CPUs, by our own engine's compiled kernels, for one rank.
        """
        return (
            self.engine == "own"
            and self.device.split(":")[0] == "cpu"
            and self.attention == "auto"
            and self.dtype != "float16"
            and self.quantization is None
            and self.tensor_parallel_size == 1
        )

    @property
    def num_blocks(self) -> int:
        """Whole blocks within `kv_cache_tokens`; where memory is given, see `kv.budget`."""
        return (self.kv_cache_tokens or 0) // self.block_tokens
