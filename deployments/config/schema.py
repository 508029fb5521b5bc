"""The whole service as one validated, frozen tree: what `args` of a Serve config file may say.

Unknown keys are errors that name the key's full path. Units are in the names. Placement (replica
counts, GPUs, labels) is not here: that is Serve's own `deployments:` section of the same file.
Whether the checkpoints it names fit it is the business of `deployments/config/model_files.py`.
Knows neither Ray nor torch; as a command (`python -m deployments.config --check FILE`) it hands
over to `deployments/config/__main__.py`.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from deployments.api.schemas.names import DrafterName, RuleName
from deployments.config.dotted_keys import nested
from deployments.config.grammar_service import GrammarServiceConfig
from deployments.config.model_paths import resolve_folder, resolve_model
from deployments.config.section import ByteSize, PositiveFloat, PositiveInt, Section
from models.config import EngineConfig, check_quantization
from models.protocol.messages import MAX_DRAFT_TOKENS
from models.protocol.rules import COUPLED
from router.drafters.draft_model import POOL
from router.drafters.registry import DRAFTERS
from router.limits import SpeculationLimits


class ModelConfig(Section):
    """One model and the process (or ranks) that computes it; the same for target and draft."""

    model_path: str = Field(
        description="Hugging Face checkpoint folder or GGUF file, relative to the current folder, "
        "else the repo; or the name of a model that `python -m models.fetch` has fetched."
    )
    dtype: Literal["bfloat16", "float16", "float32"] = Field(
        default="bfloat16", description="Type of weights and KV cache."
    )
    device: str = Field(default="cpu", description="torch device of a rank: cpu, cuda.")
    max_model_len: PositiveInt = Field(
        default=2048,
        description="Tokens of prompt and completion together; at most the checkpoint's own.",
    )
    kv_cache_tokens: PositiveInt = Field(
        default=16384,
        description="Tokens for which KV blocks are reserved, all sessions together. Of this and "
        "the next two keys at most one is given.",
    )
    kv_cache_memory: ByteSize | None = Field(
        default=None, description="The same as memory of each rank: 2GiB, 512MiB, or bytes."
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="Share of the GPU's memory for weights and KV blocks together; the rest is "
        "left to what passes need besides.",
    )
    block_size: PositiveInt = Field(
        default=64,
        description="Tokens per KV block; on a CPU compiled kernels want a multiple of 16.",
    )
    max_batch_rows: PositiveInt = Field(
        default=512, description="Rows of one forward pass; longer prompts come in chunks."
    )
    max_prefill_slowdown: Annotated[float, Field(gt=1)] = Field(
        default=2.0,
        description="How many times longer the gaps of running streams may be while others' "
        "prompts are computed.",
    )
    attention: Literal["auto", "varlen", "reference"] = Field(
        default="auto",
        description="auto: a paged kernel on a GPU that has a right one, compiled kernels on a "
        "CPU, else torch's own operations; varlen insists on the first, reference takes the last.",
    )
    graphs: Literal["auto", "off"] = Field(
        default="auto",
        description="auto: small passes are replayed from CUDA graphs where the kernel is used.",
    )
    num_threads: PositiveInt = Field(
        default=1,
        description="torch threads of a rank on a CPU. More than its cores slows all down.",
    )
    tensor_parallel_size: PositiveInt = Field(
        default=1, description="Ranks (processes, one GPU each) that share one model."
    )
    enable_prefix_caching: bool = Field(
        default=True,
        description="Keep the KV of committed tokens for sessions whose text begins alike.",
    )
    vocab_size: PositiveInt | None = Field(
        default=None,
        description="Token ids from here on are never drawn. Default: the tokenizer's, for a "
        "draft those of the target as well.",
    )
    quantization: Literal["int8"] | None = Field(
        default=None,
        description="int8: linear layers are rounded to 8 bits when loaded (cpu, one rank); of the "
        "target's, the text is then the rounded model's. null: as dtype says.",
    )
    max_sessions: PositiveInt = Field(
        default=64, description="Sessions (leases) that one replica holds at once."
    )
    lease_idle_timeout_s: PositiveFloat = Field(
        default=120.0, description="Seconds without a message after which a session is freed."
    )
    stall_timeout_s: PositiveFloat = Field(
        default=10.0,
        description="Seconds of silence after which a rank or its coordinator counts as dead.",
    )
    step_timeout_s: PositiveFloat = Field(
        default=120.0, description="Seconds one pass may take; then the replica is replaced."
    )

    @model_validator(mode="after")
    def _check_kv_size(self) -> ModelConfig:
        keys = ("kv_cache_tokens", "kv_cache_memory", "gpu_memory_utilization")
        given = [
            key for key in keys if key in self.model_fields_set and getattr(self, key) is not None
        ]
        if len(given) > 1:
            raise ValueError(f"give one of {' and '.join(given)}, they say the same thing")
        if self.gpu_memory_utilization is not None and not self.device.startswith("cuda"):
            raise ValueError(
                f"gpu_memory_utilization needs device cuda, not {self.device}; "
                "give kv_cache_tokens or kv_cache_memory"
            )
        if self.gpu_memory_utilization is not None and self.tensor_parallel_size > 1:
            raise ValueError(
                "gpu_memory_utilization needs tensor_parallel_size 1, because all ranks must come "
                f"to the same size, got {self.tensor_parallel_size}; give kv_cache_memory"
            )
        return self

    @model_validator(mode="after")
    def _check_quantization(self) -> ModelConfig:
        check_quantization(self.quantization, self.device, self.tensor_parallel_size)
        return self

    def engine_config(self) -> EngineConfig:
        """What of it a rank's engine is told; the rest is the service's."""
        names = {field.name for field in dataclasses.fields(EngineConfig)}
        return EngineConfig(**self.model_dump(include=names))


class SpeculationConfig(Section):
    """When and how far to draft ahead. A request may ask for less, never for more."""

    enabled: bool = Field(
        default=True, description="False: never draft (k = 0), whatever is asked."
    )
    method: DrafterName | None = Field(
        default=None,
        description="Who drafts; null: the draft model where there is one, else prompt lookup.",
    )
    verification: RuleName = Field(
        default=COUPLED.name,
        description="How drafts are verified: coupled (a seed gives one text) or rejection.",
    )
    prompt_lookup_min: Annotated[int, Field(ge=1, le=32)] = Field(
        default=1, description="Shortest n-gram, in tokens, that prompt lookup matches."
    )
    prompt_lookup_max: Annotated[int, Field(ge=0, le=32)] = Field(
        default=4, description="Longest n-gram; 0: no prompt lookup, also not in a draft's absence."
    )
    num_speculative_tokens: Annotated[int, Field(ge=0)] | Literal["adaptive"] = Field(
        default="adaptive",
        description="k: a fixed number, or adaptive: chosen live from acceptance.",
    )
    max_num_speculative_tokens: Annotated[int, Field(ge=0, le=MAX_DRAFT_TOKENS)] = Field(
        default=8, description="Highest k a request or the adaptive rule may reach."
    )
    run_on_tokens: Annotated[int, Field(ge=0, le=256)] = Field(
        default=16,
        description="Plain steps the target may go on alone when nothing is drafted (k = 0).",
    )

    @model_validator(mode="after")
    def _check_limit(self) -> SpeculationConfig:
        asked, limit = self.num_speculative_tokens, self.max_num_speculative_tokens
        if asked != "adaptive" and asked > limit:
            raise ValueError(
                f"num_speculative_tokens must be at most max_num_speculative_tokens, {limit}"
            )
        if 0 < self.prompt_lookup_max < self.prompt_lookup_min:
            raise ValueError(
                f"prompt_lookup_min must be at most prompt_lookup_max, {self.prompt_lookup_max}"
            )
        if self.method is not None:
            kind = DRAFTERS[self.method]
            if not kind.is_switched_on(self.limits()):
                raise ValueError(f"method {kind.name} needs {kind.needs}")
        return self

    def limits(self) -> SpeculationLimits:
        """The same in the words of the router."""
        asked = self.num_speculative_tokens
        return SpeculationLimits(
            enabled=self.enabled,
            num_speculative_tokens=None if asked == "adaptive" else asked,
            max_speculative_tokens=self.max_num_speculative_tokens,
            run_on_tokens=self.run_on_tokens,
            method=self.method,
            prompt_lookup_min=self.prompt_lookup_min,
            prompt_lookup_max=self.prompt_lookup_max,
        )


class TimeoutConfig(Section):
    """Every wait of a session. Seconds, but for the draft, which only ever costs a round."""

    queue_wait_s: PositiveFloat = Field(
        default=10.0,
        description="For a place in the router, then for a lease on a target; 429 and 503 with "
        "Retry-After. Whoever would most likely wait more than half of it gets 429 at once.",
    )
    first_token_s: PositiveFloat = Field(
        default=60.0, description="From the lease to the first token."
    )
    token_gap_s: PositiveFloat = Field(
        default=30.0,
        description="Between two tokens of a stream. A client that takes nothing for so long is "
        "gone; not so behind Serve's proxy, which takes all and keeps it.",
    )
    failover_s: PositiveFloat = Field(
        default=60.0,
        description="For a running stream to get a new target or constraint replica when its own "
        "is lost; then it ends with an error.",
    )
    queue_timeout_s: PositiveFloat = Field(
        default=300.0,
        description="For one answer of an engine that is alive but has no room yet (KV blocks, "
        "other prompts), while nothing is computed for it; then 429.",
    )
    draft_ms: PositiveFloat = Field(
        default=500.0, description="Milliseconds for one draft; then the round goes on with k = 0."
    )


class RouterConfig(Section):
    """The HTTP side and the loop: what is served under which name and within which limits."""

    model_name: str = Field(default="outrider", min_length=1, description="Name clients ask for.")
    tokenizer_path: str = Field(
        default="", description="Folder with tokenizer.json and chat template; empty: the target's."
    )
    max_model_len: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Tokens of prompt and completion together; 0: the target's."
    )
    default_max_tokens: PositiveInt = Field(
        default=256, description="Completion tokens when the request does not say."
    )
    max_tokens_limit: PositiveInt = Field(
        default=4096, description="Most completion tokens a request may ask for."
    )
    max_choices: PositiveInt = Field(
        default=16,
        description="Most answers to one request (n for each of its prompts), a session each.",
    )
    max_logprob_entries: Annotated[int, Field(gt=0, le=1_000_000)] = Field(
        default=262_144,
        description="Most logprobs in one answer: (1 + top) for each token of its choices and, "
        "where asked for, of its prompts. About 75 bytes each in the answer (20 MB), which a proxy "
        "may have to keep for its client, and at most 26 in a target's message.",
    )
    api_keys_file: str = Field(
        default="",
        description="File of 'name sha256' lines, reloaded when it changes; empty: no keys needed.",
    )
    body_limit_bytes: PositiveInt = Field(
        default=1_048_576, description="Largest HTTP body accepted."
    )
    max_sessions: PositiveInt = Field(
        default=64, description="Sessions one router replica runs at once; more wait, then get 429."
    )
    max_queued_sessions: PositiveInt = Field(
        default=128, description="Sessions that may wait for a router before new ones get 429."
    )
    speculation: SpeculationConfig = Field(default_factory=SpeculationConfig)
    timeouts: TimeoutConfig = Field(default_factory=TimeoutConfig)


class LinkConfig(Section):
    """The ZMQ links between routers, leaders and constraint services."""

    host: Literal["node", "loopback"] = Field(
        default="node", description="Bind to the node's own address, or to 127.0.0.1 (one machine)."
    )
    high_water_mark: PositiveInt = Field(
        default=4096, description="Frames queued per peer before further ones are dropped."
    )


class AppConfig(Section):
    """Everything `deployments.app:build` needs."""

    target: ModelConfig = Field(description="The model whose text is served.")
    draft: ModelConfig | None = Field(
        default=None,
        description="The model that guesses ahead; null: none, only prompt lookup drafts.",
    )
    constraint: GrammarServiceConfig = Field(default_factory=GrammarServiceConfig)
    router: RouterConfig = Field(default_factory=RouterConfig)
    link: LinkConfig = Field(default_factory=LinkConfig)

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, values: Any) -> Any:
        """`serve run deployments.app:build target.model_path=...` gives dotted keys."""
        return nested(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _check_method(self) -> AppConfig:
        speculation = self.router.speculation
        if speculation.method is not None:
            kind = DRAFTERS[speculation.method]
            if not kind.is_available(speculation.limits(), self.draft_pools):
                raise ValueError(f"router.speculation.method {kind.name} needs {kind.needs}")
        return self

    @property
    def draft_pools(self) -> tuple[str, ...]:
        """The deployments that have engines to draft with."""
        return () if self.draft is None else (POOL,)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Validate a tree of plain values.

        Raises:
            ValueError: one message that names every key at fault by its full path.
        """
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            raise ValueError(f"config: {describe(error)}") from None

    def resolved(self) -> AppConfig:
        """The same tree with absolute paths and the values that follow from the target filled in.

        Raises:
            ValueError: a model folder does not exist.
        """
        target = _with_absolute_path(self.target, "target")
        draft = None if self.draft is None else _with_absolute_path(self.draft, "draft")
        tokenizer = self.router.tokenizer_path
        router = self.router.model_copy(
            update={
                "tokenizer_path": (
                    str(resolve_folder(tokenizer, "router.tokenizer_path"))
                    if tokenizer not in ("", self.target.model_path)
                    else target.model_path
                ),
                "max_model_len": min(
                    self.router.max_model_len or target.max_model_len, target.max_model_len
                ),
            }
        )
        return self.model_copy(update={"target": target, "draft": draft, "router": router})


def describe(error: ValidationError) -> str:
    """Every key at fault, by its full path, in one line."""
    return "; ".join(_describe(item) for item in error.errors())


def _describe(item: ErrorDetails) -> str:
    path = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"unknown key {path!r}"
    if item["type"] == "missing":
        return f"missing key {path!r}"
    return f"{path or 'args'}: {item['msg']} (got {item['input']!r})"


def _with_absolute_path(model: ModelConfig, section: str) -> ModelConfig:
    folder = resolve_model(model.model_path, model.dtype, f"{section}.model_path")
    return model.model_copy(update={"model_path": str(folder)})
