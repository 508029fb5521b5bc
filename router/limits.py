"""Limits of one session: of every wait, of attempts to replace a lost part, and of drafting.

They are sections of the config tree (`router.timeouts`, `router.speculation`). These classes define
the keys of the YAML files and the limits of requests. They are the only place of their defaults. A
running session applies them in `remote.recovery`, `remote.exchange` and `drafters.choice`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from models.backoff import Backoff
from models.config import PositiveFloat, PositiveInt, Section
from models.protocol.messages import MAX_DRAFT_TOKENS
from models.protocol.rules import COUPLED

_LONGEST_PAUSE = 8  # times the first pause
_ROUNDING = 1e-9  # rounding error of decimal fractions whose sum is 1 on paper


class SessionLimits(Section):
    """Limits of every wait of a session, and of its losses."""

    queue_wait_s: PositiveFloat = Field(
        default=15.0,  # above stall_timeout_s: a target that hangs is found first
        description="for a place in the router, then 429; then for a lease while all targets are "
        "full, then 503; a request that would likely wait for over half of it gets 429 at once",
    )
    first_token_s: PositiveFloat = Field(
        default=60.0,
        description="from the lease to the first token, which includes the prefill; for a first "
        "lease, too, while no target is there at all, if failover_s is not shorter",
    )
    token_gap_s: PositiveFloat = Field(
        default=30.0,
        description="between two tokens: an engine silent for longer counts as dead, and so does a "
        "client that takes nothing, but not one after Serve's proxy, which takes all and keeps it",
    )
    queue_timeout_s: PositiveFloat = Field(
        default=300.0,
        description="for one answer of an engine that is alive but has no room yet (KV blocks, "
        "others' prompts); then 429",
    )
    failover_s: PositiveFloat = Field(
        default=60.0,
        description="for a running stream to get another target or constraint replica when its "
        "own is lost; then it ends with an error",
    )
    max_losses: PositiveInt = Field(
        default=3,
        description="targets, or constraint replicas, that one request may lose in all; then it "
        "ends, and the router refuses the same request for 3 minutes",
    )
    draft_ms: PositiveFloat = Field(
        default=500.0,
        description="milliseconds for a draft model's draft; then the round goes on without",
    )
    resend_interval_s: PositiveFloat = Field(
        default=2.0, description="until a message without an answer is sent again"
    )
    rejoin_interval_s: PositiveFloat = Field(
        default=0.5,
        description="first pause between attempts to replace a lost part; each next one is twice "
        f"as long, at most {_LONGEST_PAUSE} times",
    )

    @property
    def draft_s(self) -> float:
        """`draft_ms` in seconds."""
        return self.draft_ms / 1e3

    def backoff(self) -> Backoff:
        """Return the pauses between attempts to replace one part."""
        return Backoff(self.rejoin_interval_s, _LONGEST_PAUSE * self.rejoin_interval_s)


class SpeculationLimits(Section):
    """When and how far to draft ahead. A request may ask for less, never for more."""

    enabled: bool = Field(
        default=True, description="false: plain decoding (k = 0), whatever is asked"
    )
    method: str | None = Field(
        default=None,
        description="who drafts: draft_model, suffix (suffix decoding), ngram (prompt lookup), or "
        "heads: only what drafts in the target's process (also by its kind: mtp, medusa, eagle3, "
        "early_exit); null: the first that is there. Heads draft beside any of these",
    )
    verification: str = Field(
        default=COUPLED.name,
        description="how drafts are verified: coupled (a seed gives one text) or rejection (the "
        "text depends on the draft too)",
    )
    draft_sample_method: Literal["probabilistic", "greedy"] = Field(
        default="probabilistic",
        description="how a draft model chooses its tokens where the target samples: probabilistic, "
        "by the request's temperature, or greedy, its likeliest token; a request may say otherwise",
    )
    prompt_lookup_min: Annotated[int, Field(ge=1, le=32)] = Field(
        default=1, description="shortest n-gram, in tokens, that prompt lookup matches"
    )
    prompt_lookup_max: Annotated[int, Field(ge=0, le=32)] = Field(
        default=4,
        description="longest n-gram; without suffix decoding prompt lookup also fills in while the "
        "draft model is away; 0: no prompt lookup at all",
    )
    suffix_decoding_max_tree_depth: Annotated[int, Field(ge=0, le=256)] = Field(
        default=24,
        description="longest match, in tokens, that suffix decoding tells from shorter ones; it "
        "also continues the drafts of the draft model, and fills in while that is away; 0: no "
        "suffix decoding at all",
    )
    suffix_decoding_max_spec_factor: Annotated[float, Field(ge=0.0, le=64.0)] = Field(
        default=4.0, description="tokens drafted for each token of a match"
    )
    suffix_decoding_max_spec_offset: Annotated[float, Field(ge=0.0, le=64.0)] = Field(
        default=2.0, description="tokens drafted beside these"
    )
    suffix_decoding_min_token_prob: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        default=0.1, description="least share of earlier places that a whole draft must agree with"
    )
    draft_ahead: Annotated[int, Field(ge=0, le=64)] = Field(
        default=0,
        description="drafts ahead: the draft model goes on after this many outcomes of a "
        "verification at most, while the target verifies; free text under the rule coupled only; "
        "pays where both have a device of their own; 0: off",
    )
    suffix_decoding_max_cached_requests: Annotated[int, Field(ge=0)] = Field(
        default=1000,
        description="answers that a router keeps to draft from, for requests of the same "
        "cache_salt alone; 0: none",
    )
    suffix_decoding_max_cached_tokens: Annotated[int, Field(ge=0, le=1 << 24)] = Field(
        default=65_536, description="tokens that they may have together, at some 400 bytes each"
    )
    drafted_by: dict[str, str] = Field(
        default_factory=dict,
        description="of draft models: a smaller one each, by name, whose tokens the larger one is "
        "sent as the guess of its draft, as {draft_model: NAME}: fewer steps of the larger one, "
        "the same draft",
    )
    draft_shares: dict[str, Annotated[float, Field(ge=0.0, le=1.0)]] = Field(
        default_factory=dict,
        description="of several draft models: shares of the sessions that are pinned to them, by "
        "name, as {draft_model: 0.5, NAME: 0.5}; each of the others has the one that earns most",
    )
    compare_share: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        default=0.0,
        description="share of the answers along which every draft model is asked, afterwards, what "
        "it would have drafted",
    )
    num_speculative_tokens: Annotated[int, Field(ge=0)] | Literal["adaptive"] = Field(
        default="adaptive",
        description="k: a fixed number, or adaptive: chosen live from acceptance and cost",
    )
    max_num_speculative_tokens: Annotated[int, Field(ge=0, le=MAX_DRAFT_TOKENS)] = Field(
        default=8, description="highest k, asked for, fixed or adaptive"
    )
    max_num_free_tokens: Annotated[int, Field(ge=0, le=MAX_DRAFT_TOKENS)] = Field(
        default=16,
        description="tokens of forced or repeated text, which cost no step, that a draft may have "
        "beside the k chosen live; of a fixed k they are a part; 0: none",
    )
    forced_text: bool = Field(
        default=True,
        description="draft what a grammar forces (key names, punctuation, the rest of an enum's "
        "value): free tokens, found by the constraint service",
    )
    disable_above_temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = Field(
        default=None,
        description="rule: no drafts for requests of a higher temperature; null: no rule, "
        "acceptance decides",
    )
    disable_below_max_tokens: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="rule: no drafts for requests that may have fewer completion tokens; 0: no "
        "rule",
    )
    disable_by_batch_size: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="rule: no drafts in rounds while more sessions of this router run on the same "
        "target; a request may set a lower one; 0: no rule, measured cost decides",
    )
    run_on_tokens: Annotated[int, Field(ge=0, le=256)] = Field(
        default=32,
        description="plain steps that the target may go on alone where nothing is drafted",
    )

    @property
    def fixed_length(self) -> int | None:
        """k where it is fixed; None: it is chosen live."""
        length = self.num_speculative_tokens
        return None if length == "adaptive" else length

    @model_validator(mode="after")
    def _check_limit(self) -> Self:
        fixed, limit = self.fixed_length, self.max_num_speculative_tokens
        if fixed is not None and fixed > limit:
            raise ValueError(
                f"num_speculative_tokens must be at most max_num_speculative_tokens, {limit}, "
                f"got {fixed}"
            )
        for larger, smaller in self.drafted_by.items():
            if smaller in self.drafted_by:
                raise ValueError(
                    f"drafted_by: a draft model that drafts for another is drafted for by none, "
                    f"got {smaller!r} for {larger!r} and {self.drafted_by[smaller]!r} for "
                    f"{smaller!r}"
                )
        if self.draft_ahead > 0 and self.drafted_by:
            raise ValueError(
                f"draft_ahead does not go with drafted_by, got {self.draft_ahead}: a draft that is "
                "there needs no guess"
            )
        if (pinned := sum(self.draft_shares.values())) > 1.0 + _ROUNDING:
            raise ValueError(f"draft_shares must be at most 1 together, got {pinned:g}")
        if 0 < self.prompt_lookup_max < self.prompt_lookup_min:
            raise ValueError(
                f"prompt_lookup_min must be at most prompt_lookup_max, {self.prompt_lookup_max}, "
                f"got {self.prompt_lookup_min}"
            )
        return self
