"""The section `constraint` of the config tree."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from deployments.config.section import PositiveFloat, PositiveInt, Section


class GrammarServiceConfig(Section):
    """The constraint service: child processes that compile grammars and hold matchers."""

    num_children: PositiveInt = Field(default=1, description="Child processes per replica.")
    memory_limit_mb: Annotated[int, Field(ge=128)] = Field(
        default=512, description="Memory of a child, MB; beyond it the child is replaced."
    )
    compile_cpu_s: PositiveFloat = Field(
        default=1.0, description="CPU seconds a grammar may take to compile; over it is refused."
    )
    compile_memory_mb: PositiveInt = Field(
        default=32, description="Memory a grammar may take to compile, MB; over it is refused."
    )
    compile_timeout_s: PositiveFloat = Field(
        default=15.0,
        description="Seconds a grammar may wait for its compile and be compiled; then 503.",
    )
    mask_timeout_s: PositiveFloat = Field(
        default=2.0,
        description="Seconds for masks or a commit; then the child is replaced, one that got no "
        "CPU after five times as long.",
    )
    max_schema_bytes: PositiveInt = Field(
        default=65536,
        description="Longest grammar accepted, bytes of UTF-8; a regex at most 4096, all choices "
        "together at most 32768.",
    )
    cache_size: PositiveInt = Field(
        default=128, description="Compiled grammars kept in each child."
    )
    max_sessions: PositiveInt = Field(
        default=256, description="Sessions (leases) one replica holds at once."
    )
    lease_idle_timeout_s: PositiveFloat = Field(
        default=120.0, description="Seconds after which a lease without any message ends."
    )
    stall_timeout_s: PositiveFloat = Field(
        default=10.0,
        description="Seconds of silence after which a replica's process counts as dead.",
    )

    @model_validator(mode="after")
    def _check_memory(self) -> GrammarServiceConfig:
        if self.compile_memory_mb > self.memory_limit_mb // 4:
            raise ValueError(
                "compile_memory_mb must be at most a quarter of memory_limit_mb, "
                f"{self.memory_limit_mb}, got {self.compile_memory_mb}"
            )
        return self
