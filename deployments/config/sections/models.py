"""The models of a service, and the trees of values that name them.

A model may have a Serve application of its own (`ModelArgs`). Serve replaces all replicas of an
application when any key of its `args` changes. So a router's key then touches no GPU, and a draft
that cannot start holds up nothing else. Knows neither Ray nor torch nor the disk.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from deployments.config.keys import nested
from models.config import EngineConfig, PositiveFloat, PositiveInt, Section
from router.drafters.draft_model import POOL
from router.drafters.heads import HEADS_NAMES
from router.drafters.registry import DRAFTERS

SPARE = (  # the description of `spare` in every section that has one
    "there are two replicas, of which one has all that it has room for, and the other has it when "
    "that is lost"
)
DRAFT_NAME = re.compile("[a-z][a-z0-9_-]{0,31}")
TARGET = "target"
NumSessions = Annotated[PositiveInt, Field(le=1_000_000)]  # Serve counts requests in 32 bits


class LeaseConfig(Section):
    """Limits by which a replica watches its sessions' leases, and is watched itself."""

    lease_idle_timeout_s: PositiveFloat = Field(
        default=120.0, description="a session without a message for so long is freed"
    )
    stall_timeout_s: Annotated[float, Field(ge=1, le=86_400)] = Field(
        default=10.0, description="a process that is silent for longer counts as dead"
    )


class ModelConfig(LeaseConfig, EngineConfig):
    """One model and the process (or ranks) that computes it, target or draft.

    It has the engine's config and the service's own keys.
    """

    max_num_seqs: NumSessions = Field(
        default=64,
        description="sessions (leases) that one replica holds at once, some to spare for /health",
    )
    spare: bool = Field(
        default=False,
        description=f"of a target: {SPARE}; on one machine's CPUs both read one copy of the "
        "weights",
    )
    step_timeout_s: PositiveFloat = Field(
        default=120.0,
        description="one pass may take so long, then the replica is replaced; a quarter, and at "
        "least stall_timeout_s, where it is 5 times what passes of its size took",
    )


class LinkConfig(Section):
    """The ZMQ links between routers, engines and constraint services."""

    host: Literal["node", "loopback"] = Field(
        default="node", description="node: listen at the node's own address; loopback: one machine"
    )
    high_water_mark: Annotated[PositiveInt, Field(le=2**31 - 1)] = Field(
        default=4096, description="frames queued per peer before further ones are dropped"
    )


def section_of_draft(pool: str) -> str:
    """Return the section of the config that a draft model is in, by the name of its pool."""
    return pool if pool == POOL else f"drafts.{pool}"


class Models(Section):
    """A target, and draft models for it."""

    target: ModelConfig = Field(description="the model whose text is served")
    draft: ModelConfig | None = Field(
        default=None, description="the model that guesses ahead; leave it out for none"
    )
    drafts: dict[str, ModelConfig] = Field(
        default_factory=dict,
        description="further draft models by name, each a deployment Draft-NAME; a session has "
        "the one that earns most",
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
    def _check_heads(self) -> Self:
        for pool, model in self.draft_models.items():
            section = section_of_draft(pool)
            if model.heads is not None:
                raise ValueError(f"{section}.heads: only a target drafts by heads")
            if model.early_exit is not None:
                raise ValueError(f"{section}.early_exit: only a target drafts by its first layers")
            if model.lora_modules:
                raise ValueError(f"{section}.lora_modules: only a target has adapters")
            if model.spare:
                raise ValueError(f"{section}.spare: only a target has one, streams outlive a draft")
        return self

    @field_validator("drafts")
    @classmethod
    def _check_names(cls, drafts: dict[str, ModelConfig]) -> dict[str, ModelConfig]:
        for name in drafts:
            check_draft_name(name)
        return drafts

    @property
    def models(self) -> dict[str, ModelConfig]:
        """Target and draft models by the name of their section."""
        drafts = {section_of_draft(pool): model for pool, model in self.draft_models.items()}
        return {TARGET: self.target} | drafts

    def with_models(self, models: Mapping[str, ModelConfig]) -> Self:
        """Return the same tree with other models, by the name of their section."""
        drafts = {
            pool: models.get(section_of_draft(pool), model)
            for pool, model in self.draft_models.items()
        }
        draft = drafts.pop(POOL, None)
        target = models.get(TARGET, self.target)
        return self.model_copy(update={"target": target, "draft": draft, "drafts": drafts})

    @property
    def draft_models(self) -> dict[str, ModelConfig]:
        """The draft models by the name of their pool, the one of the section `draft` first."""
        return ({} if self.draft is None else {POOL: self.draft}) | self.drafts

    @property
    def draft_pools(self) -> tuple[str, ...]:
        """The pools that have engines to draft with."""
        return tuple(self.draft_models)

    @property
    def models_here(self) -> dict[str, ModelConfig]:
        """The models that this application serves, by the name of their section."""
        return self.models

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


class ModelArgs(Models):
    """The tree of `deployments.app:build_model`: one model, as an application of its own.

    It serves the draft model where there is one. `target` then says whose token ids that one has.
    """

    model_name: str = Field(
        default="outrider", min_length=1, description="a label of metrics, as router.model_name"
    )

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if len(self.draft_models) > 1:
            drafts = ", ".join(map(section_of_draft, self.draft_models))
            raise ValueError(f"one draft model has one application, got {drafts}")
        return self

    @property
    def models_here(self) -> dict[str, ModelConfig]:
        """See `Models.models_here`; one."""
        drafts = {section: model for section, model in self.models.items() if section != TARGET}
        return drafts or self.models

    @property
    def section(self) -> str:
        """The section of the model that is served."""
        return next(iter(self.models_here))


def check_draft_name(name: str) -> None:
    """Check that a draft model may have this name.

    Raises:
        ValueError: it may not.
    """
    taken = (POOL, *DRAFTERS, *HEADS_NAMES)
    if not DRAFT_NAME.fullmatch(name) or name in taken:
        raise ValueError(
            f"a name must be 1 to 32 of a-z, 0-9, - and _, begin with a letter, and be "
            f"none of {', '.join(taken)}, got {name!r}"
        )


def pool_of(section: str) -> str:
    """Return the pool of the draft model in a section, `draft` or `drafts.NAME`."""
    return section if section == POOL else section.removeprefix("drafts.")


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
