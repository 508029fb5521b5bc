"""The whole service as one validated, frozen tree: what `args` of a Serve config file may say.

Every key is declared once, with its default and a description. An engine's are in
`models/config.py`, waits and drafting in `router/limits.py`, the rest here. The reference page
(`deployments/docs/config-keys.md`) is made of the descriptions. Unknown keys are errors that name
the key's full path. Units are in the names. Placement (replica counts, GPUs, labels) is not here:
that is Serve's own `deployments:` section of the same file. `model_files` checks if the checkpoints
fit. Knows neither Ray nor torch nor the disk.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from deployments.api.schemas.names import NameOf
from deployments.api.schemas.sampling_defaults import AUTO, SamplingDefaults
from deployments.api.transport.settings import HttpConfig
from deployments.config.keys import nested
from deployments.config.sections.capture import CaptureConfig
from models.config import EngineConfig, PositiveFloat, PositiveInt, Section
from models.grammar.limits import ChoiceLimits, HostLimits, RegexLimits, SchemaLimits
from models.protocol.rules import RULES
from models.text.tools.reasoning import REASONING, named_reasoning
from models.text.tools.registry import LAYOUTS, named_layout
from router.drafters.choice import check_draft_names
from router.drafters.draft_model import POOL
from router.drafters.heads import HEADS_NAMES, check_method, names_heads
from router.drafters.registry import DRAFTERS, drafters_of
from router.limits import SessionLimits, SpeculationLimits

_DRAFT_NAME = re.compile("[a-z][a-z0-9_-]{0,31}")


class LeaseConfig(Section):
    """Limits by which a replica watches its sessions' leases, and is watched itself."""

    lease_idle_timeout_s: PositiveFloat = Field(
        default=120.0, description="a session without a message for so long is freed"
    )
    stall_timeout_s: PositiveFloat = Field(
        default=10.0, description="a process that is silent for longer counts as dead"
    )


class ModelConfig(LeaseConfig, EngineConfig):
    """One model and the process (or ranks) that computes it, target or draft.

    It has the engine's config and the service's own keys.
    """

    max_num_seqs: PositiveInt = Field(
        default=64,
        description="sessions (leases) that one replica holds at once, some to spare for /health",
    )
    step_timeout_s: PositiveFloat = Field(
        default=120.0,
        description="one pass may take so long, then the replica is replaced; a quarter, and at "
        "least stall_timeout_s, where it is 5 times what passes of its size took",
    )


class GrammarServiceConfig(LeaseConfig):
    """The constraint service: child processes that compile grammars and hold matchers."""

    num_children: PositiveInt = Field(default=1, description="child processes per replica")
    memory_limit_mb: Annotated[int, Field(ge=128)] = Field(
        default=512, description="MB of memory of a child; beyond it the child is replaced"
    )
    compile_cpu_s: PositiveFloat = Field(
        default=1.0, description="CPU seconds that one grammar may take to compile; then 400"
    )
    compile_memory_mb: PositiveInt = Field(
        default=32, description="MB of memory that one grammar may take to compile; then 400"
    )
    compile_timeout_s: PositiveFloat = Field(
        default=15.0, description="for a grammar to wait for its compile and be compiled; then 503"
    )
    mask_timeout_s: PositiveFloat = Field(
        default=2.0,
        description="for masks or a commit; then the child is replaced, one that got no CPU after "
        "five times as long",
    )
    max_schema_bytes: PositiveInt = Field(
        default=SchemaLimits().max_schema_bytes,
        description="longest grammar, bytes of UTF-8; a regex at most "
        f"{RegexLimits().max_pattern_bytes}, all choices together at most "
        f"{ChoiceLimits().max_total_bytes}",
    )
    cache_size: PositiveInt = Field(
        default=HostLimits().max_cached_grammars,
        description="compiled grammars that are kept in each child",
    )
    max_sessions: PositiveInt = Field(
        default=HostLimits().max_sessions,
        description="sessions (leases) that one replica holds at once",
    )
    reward_cpu_s: PositiveFloat = Field(
        default=1.0,
        description="CPU seconds that a reward of look-aheads may take to answer once; then 400",
    )
    reward_memory_mb: PositiveInt = Field(
        default=128, description="MB of memory that it may take for that; then 400"
    )
    reward_timeout_s: PositiveFloat = Field(
        default=10.0, description="for one answer of a reward; then 400"
    )
    reward_classifiers: dict[str, str] = Field(
        default_factory=dict,
        description="classifiers that requests may name as rewards, as {NAME: FOLDER}: checkpoints "
        "of transformers for sequence classification, on every node of this deployment",
    )

    @model_validator(mode="after")
    def _check_memory(self) -> Self:
        if self.compile_memory_mb > self.memory_limit_mb // 4:
            raise ValueError(
                "compile_memory_mb must be at most a quarter of memory_limit_mb, "
                f"{self.memory_limit_mb}, got {self.compile_memory_mb}"
            )
        return self


class SpeculationConfig(SpeculationLimits):
    """The router's limits, whose names of a drafter and a rule are those of the registries."""

    @field_validator("method")
    @classmethod
    def _check_name(cls, name: str | None) -> str | None:
        if name is None or _DRAFT_NAME.fullmatch(name):  # AppConfig checks that it is there
            return name
        return NameOf(DRAFTERS).checked(name)

    @field_validator("verification")
    @classmethod
    def _check_rule(cls, name: str) -> str:
        return NameOf(RULES).checked(name)

    @model_validator(mode="after")
    def _check_method(self) -> Self:
        if self.method is not None:
            kind = DRAFTERS.get(self.method)
            if kind is not None and not kind.is_switched_on(self):
                raise ValueError(f"method {kind.name} needs {kind.needs}")
        return self


def section_of_draft(pool: str) -> str:
    """Return the section of the config that a draft model is in, by the name of its pool."""
    return pool if pool == POOL else f"drafts.{pool}"


class RouterConfig(Section):
    """The HTTP side and the loop: what is served under which name and within which limits."""

    model_name: str = Field(default="outrider", min_length=1, description="what clients ask for")
    tokenizer_path: str = Field(
        default="",
        description="folder with tokenizer.json and chat template; empty: the target's",
    )
    tool_call_parser: str = Field(
        default="auto",
        description=f"how the model writes tool calls: {', '.join(LAYOUTS)}; "
        "auto: as its chat template shows",
    )
    reasoning_parser: str = Field(
        default="auto",
        description=f"how it writes reasoning before its answer: {', '.join(REASONING)} or none; "
        "auto: as its chat template shows",
    )
    generation_config: str = Field(
        default=AUTO,
        min_length=1,
        description="where default sampling comes from: auto, the generation_config.json beside "
        "the tokenizer; a folder with such a file; or vllm, none",
    )
    override_generation_config: SamplingDefaults = Field(
        default_factory=SamplingDefaults, description="default sampling, in place of that"
    )
    max_model_len: Annotated[int, Field(ge=0)] = Field(
        default=0, description="tokens of prompt and completion together; 0: the target's"
    )
    default_max_tokens: PositiveInt = Field(
        default=256, description="completion tokens when a request does not say"
    )
    max_tokens_limit: PositiveInt = Field(
        default=4096,
        description="most completion tokens that a request may ask for; what the window does not "
        "hold is cut, not refused",
    )
    max_choices: PositiveInt = Field(
        default=128,
        description="answers to one request (n for each of its prompts), a session each",
    )
    max_choices_at_once: PositiveInt = Field(
        default=16,
        description="of these, sessions that run or wait for a place at once; the others begin as "
        "these end",
    )
    max_logprob_entries: Annotated[int, Field(gt=0, le=1_000_000)] = Field(
        default=262_144,
        description="logprobs in one answer: (1 + top) for each token of its choices, and of its "
        "prompts where asked for; 75 bytes each, 20 MB in all, which a proxy may have to keep",
    )
    api_keys_file: str = Field(
        default="",
        description="file of 'name sha256' lines (python -m deployments.api_keys NAME), reloaded "
        "when it changes; empty: no key is asked for",
    )
    otlp_traces_endpoint: str = Field(
        default="",
        pattern="^(https?://.+)?$",
        description="OTLP/HTTP address that spans of requests and rounds are sent to, like "
        "http://collector:4318/v1/traces (pip install 'outrider[otel]'); empty: none are made",
    )
    capture: CaptureConfig = Field(
        default_factory=CaptureConfig, description="answers kept to train drafters on"
    )
    body_limit_bytes: PositiveInt = Field(
        default=1_048_576, description="largest HTTP body accepted, bytes"
    )
    max_sessions: PositiveInt = Field(
        default=64, description="sessions that one router replica runs at once"
    )
    max_queued_sessions: PositiveInt = Field(
        default=128, description="sessions that wait beyond that; further ones get 429"
    )
    prefix_aware_leases: bool = Field(
        default=True,
        description="conversations that begin alike prefer the replica that may hold their KV, "
        "while it is not fuller than others; false: always the emptier of two",
    )
    max_rollouts: PositiveInt = Field(
        default=32,
        description="roll-outs of look-aheads that one router replica runs at once, each a place "
        "on a target beside its session's; further requests wait",
    )
    max_rollout_slowdown: Annotated[float, Field(gt=1)] = Field(
        default=1.5,
        description="how many times longer rows of look-aheads may make a pass of other streams; "
        "those beyond wait for others to end",
    )
    http: HttpConfig = Field(default_factory=HttpConfig, description="browsers and proxies")
    speculation: SpeculationConfig = Field(
        default_factory=SpeculationConfig, description="when and how far to draft ahead"
    )
    timeouts: SessionLimits = Field(
        default_factory=SessionLimits, description="every wait of a session, in seconds"
    )

    @field_validator("tool_call_parser")
    @classmethod
    def _check_tool_parser(cls, name: str) -> str:
        named_layout(name, "")
        return name

    @field_validator("reasoning_parser")
    @classmethod
    def _check_reasoning_parser(cls, name: str) -> str:
        named_reasoning(name, "")
        return name


class LinkConfig(Section):
    """The ZMQ links between routers, engines and constraint services."""

    host: Literal["node", "loopback"] = Field(
        default="node", description="node: listen at the node's own address; loopback: one machine"
    )
    high_water_mark: PositiveInt = Field(
        default=4096, description="frames queued per peer before further ones are dropped"
    )


class AppConfig(Section):
    """Everything `deployments.app:build` needs."""

    target: ModelConfig = Field(description="the model whose text is served")
    draft: ModelConfig | None = Field(
        default=None, description="the model that guesses ahead; leave it out for none"
    )
    drafts: dict[str, ModelConfig] = Field(
        default_factory=dict,
        description="further draft models by name, each a deployment Draft-NAME; a session has "
        "the one that earns most",
    )
    constraint: GrammarServiceConfig = Field(
        default_factory=GrammarServiceConfig, description="grammars, in child processes"
    )
    router: RouterConfig = Field(
        default_factory=RouterConfig, description="HTTP and the loop of each session"
    )
    link: LinkConfig = Field(
        default_factory=LinkConfig,
        description="sockets between routers, engines and constraint service",
    )

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, values: Any) -> Any:
        """`serve run deployments.app:build target.model_path=...` gives dotted keys."""
        return nested(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _check_method(self) -> Self:
        for pool, model in self.draft_models.items():
            section = section_of_draft(pool)
            if model.heads is not None:
                raise ValueError(f"{section}.heads: only a target drafts by heads")
            if model.early_exit is not None:
                raise ValueError(f"{section}.early_exit: only a target drafts by its first layers")
        speculation = self.router.speculation
        try:
            check_draft_names(speculation, self.draft_pools)
        except ValueError as error:
            raise ValueError(f"router.{error}") from None
        if names_heads(speculation.method):
            check_method(speculation.method, self.target.heads, self.target.early_exit)
        elif speculation.method is not None:
            kinds = drafters_of(self.draft_pools)
            if speculation.method not in kinds:
                raise ValueError(
                    f"router.speculation.method: must be one of {', '.join(kinds)}, "
                    f"got {speculation.method!r}"
                )
            kind = kinds[speculation.method]
            if not kind.is_available(speculation, self.draft_pools):
                raise ValueError(f"router.speculation.method {kind.name} needs {kind.needs}")
        return self

    @field_validator("drafts")
    @classmethod
    def _check_names(cls, drafts: dict[str, ModelConfig]) -> dict[str, ModelConfig]:
        for name in drafts:
            taken = (POOL, *DRAFTERS, *HEADS_NAMES)
            if not _DRAFT_NAME.fullmatch(name) or name in taken:
                raise ValueError(
                    f"a name must be 1 to 32 of a-z, 0-9, - and _, begin with a letter, and be "
                    f"none of {', '.join(taken)}, got {name!r}"
                )
        return drafts

    @property
    def models(self) -> dict[str, ModelConfig]:
        """Target and draft models by the name of their section."""
        drafts = {section_of_draft(pool): model for pool, model in self.draft_models.items()}
        return {"target": self.target} | drafts

    def with_models(self, models: Mapping[str, ModelConfig]) -> Self:
        """Return the same tree with other models, by the name of their section."""
        drafts = {
            pool: models.get(section_of_draft(pool), model)
            for pool, model in self.draft_models.items()
        }
        draft = drafts.pop(POOL, None)
        target = models.get("target", self.target)
        return self.model_copy(update={"target": target, "draft": draft, "drafts": drafts})

    @property
    def draft_models(self) -> dict[str, ModelConfig]:
        """The draft models by the name of their pool, the one of the section `draft` first."""
        return ({} if self.draft is None else {POOL: self.draft}) | self.drafts

    @property
    def draft_pools(self) -> tuple[str, ...]:
        """The pools that have engines to draft with."""
        return tuple(self.draft_models)

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


def describe(error: ValidationError) -> str:
    """Name every key at fault, by its full path, in one line."""
    return "; ".join(_describe(item) for item in error.errors())


def _describe(item: ErrorDetails) -> str:
    path = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"unknown key {path!r}"
    if item["type"] == "missing":
        return f"missing key {path!r}"
    got = "" if isinstance(item["input"], dict) else f" (got {item['input']!r})"
    return f"{path or 'args'}: {item['msg']}{got}"
