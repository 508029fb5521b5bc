"""The whole service as one validated, frozen tree: what `args` of a Serve config file may say.

Every key is declared once, with its default and a description. An engine's are in
`models/config.py`, those of models in `sections/models.py`, waits and drafting in
`router/limits.py`, the rest here. The reference page
(`deployments/docs/config-keys.md`) is made of the descriptions. Unknown keys are errors that name
the key's full path. Units are in the names. Placement (replica counts, GPUs, labels) is not here:
that is Serve's own `deployments:` section of the same file. `model_files` checks if the checkpoints
fit. Knows neither Ray nor torch nor the disk.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from deployments.api.schemas.names import name_in
from deployments.api.schemas.sampling_defaults import AUTO, SamplingDefaults
from deployments.api.transport.settings import HttpConfig
from deployments.config.sections.models import (
    DRAFT_NAME,
    SPARE,
    TARGET,
    LeaseConfig,
    ModelConfig,
    Models,
    NumSessions,
    check_draft_name,
    pool_of,
)
from models.config import PositiveFloat, PositiveInt, Section
from models.grammar.limits import MAX_CHOICES_BYTES, MAX_PATTERN_BYTES, HostLimits, SchemaLimits
from models.protocol.rules import RULES
from models.text.tools.formats import LAYOUTS, named_layout
from models.text.tools.reasoning import REASONING, named_reasoning
from router.drafters.choice import check_draft_names
from router.drafters.draft_model import POOL
from router.drafters.heads import check_method, names_heads
from router.drafters.registry import DRAFTERS, drafters_of
from router.limits import SessionLimits, SpeculationLimits


class GrammarServiceConfig(LeaseConfig):
    """The constraint service: child processes that compile grammars and hold matchers."""

    spare: bool = Field(default=False, description=SPARE)
    num_children: Annotated[PositiveInt, Field(le=256)] = Field(
        default=1, description="child processes per replica"
    )
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
        description=f"longest grammar, bytes of UTF-8; a regex at most {MAX_PATTERN_BYTES}, "
        f"all choices together at most {MAX_CHOICES_BYTES}",
    )
    cache_size: PositiveInt = Field(
        default=HostLimits().max_cached_grammars,
        description="compiled grammars that are kept in each child",
    )
    max_sessions: NumSessions = Field(
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
        if name is None or DRAFT_NAME.fullmatch(name):  # AppConfig checks that it is there
            return name
        return name_in(DRAFTERS, name)

    @field_validator("verification")
    @classmethod
    def _check_rule(cls, name: str) -> str:
        return name_in(RULES, name)

    @model_validator(mode="after")
    def _check_method(self) -> Self:
        if self.method is not None:
            kind = DRAFTERS.get(self.method)
            if kind is not None and not kind.is_switched_on(self):
                raise ValueError(f"method {kind.name} needs {kind.needs}")
        return self


class CaptureConfig(Section):
    """Answers of real requests that are kept to train drafters on."""

    folder: str = Field(
        default="",
        description="where token ids of prompts and answers are written, for python -m "
        "models.distill; on each router's node; empty: nothing is kept",
    )
    max_size_mib: PositiveInt = Field(
        default=256, description="MiB of all files; the oldest are deleted"
    )
    max_age_hours: PositiveFloat = Field(
        default=168.0, description="hours after which a file is deleted"
    )


class RouterConfig(Section):
    """The HTTP side and the loop: what is served under which name and within which limits."""

    model_name: str = Field(default="outrider", min_length=1, description="what clients ask for")
    spare: bool = Field(default=False, description=SPARE)
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
    max_sessions: NumSessions = Field(
        default=64, description="sessions that one router replica runs at once"
    )
    max_queued_sessions: NumSessions = Field(
        default=128, description="sessions that wait beyond that; further ones get 429"
    )
    reserved_sessions: int = Field(
        default=0,
        ge=0,
        description="of max_sessions, those that no client with half of all gets, so that others "
        "need not wait for it; at most a half, and only with api_keys_file",
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

    @model_validator(mode="after")
    def _check_reserved(self) -> Self:
        most = self.max_sessions // 2
        if self.reserved_sessions > most:
            raise ValueError(
                f"reserved_sessions: must be at most {most}, half of max_sessions, which is "
                f"{self.max_sessions}, got {self.reserved_sessions}"
            )
        if self.reserved_sessions and not self.api_keys_file:
            raise ValueError(
                f"reserved_sessions: must be 0 without api_keys_file, which tells clients apart, "
                f"got {self.reserved_sessions}"
            )
        return self

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


class AppConfig(Models):
    """The tree of `deployments.app:build`: routers, constraint service, and models with them."""

    constraint: GrammarServiceConfig = Field(
        default_factory=GrammarServiceConfig, description="grammars, in child processes"
    )
    router: RouterConfig = Field(
        default_factory=RouterConfig, description="HTTP and the loop of each session"
    )
    applications: dict[str, str] = Field(
        default_factory=dict,
        description="models with a Serve application of their own (`deployments.app:build_model`), "
        "as {target, draft or drafts.NAME: APPLICATION}; `target` here then says what routers know "
        "of it",
    )

    @field_validator("applications")
    @classmethod
    def _check_sections(cls, applications: dict[str, str]) -> dict[str, str]:
        for section, application in applications.items():
            if section.startswith("drafts."):
                check_draft_name(pool_of(section))
            elif section not in (TARGET, POOL):
                raise ValueError(f"{section}: must be {TARGET}, {POOL} or drafts.NAME")
            if not application:
                raise ValueError(f"{section}: must name an application, got ''")
        return applications

    @model_validator(mode="after")
    def _check_method(self) -> Self:
        for section in self.applications:
            if section != TARGET and section in self.models:
                raise ValueError(f"{section} stands here and in applications too, must in one")
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

    @model_validator(mode="after")
    def _check_adapters(self) -> Self:
        name = self.router.model_name
        if name in self.target.lora_modules:
            raise ValueError(
                f"target.lora_modules: no name may be that of the model, router.model_name, "
                f"got {name!r}"
            )
        return self

    @property
    def draft_pools(self) -> tuple[str, ...]:
        """See `Models.draft_pools`; with those of other applications."""
        others = [pool_of(section) for section in self.applications if section != TARGET]
        pools = [*self.draft_models, *others]
        return tuple(sorted(pools, key=lambda pool: pool != POOL))

    @property
    def models_here(self) -> dict[str, ModelConfig]:
        """See `Models.models_here`."""
        return {
            section: model
            for section, model in self.models.items()
            if section not in self.applications
        }
