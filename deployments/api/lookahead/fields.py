"""The request field `lookahead`: text that is steered by a reward. Shape and limits alone."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from deployments.api.schemas.strict_fields import StrictFields, refuse_value, shown, without_nulls
from models.rewards.registry import reward_names

MAX_LENGTH = 32  # tokens of a draft and of a roll-out
MAX_CANDIDATES = 16  # a session on the target each


def _known(reward: dict[str, Any]) -> dict[str, Any]:
    reward = without_nulls(reward)
    kind = reward.get("kind")
    if kind not in reward_names():
        refuse_value(f"kind: must be one of {', '.join(reward_names())}, got {shown(kind)}")
    return reward


RewardField = Annotated[
    dict[str, Any],
    AfterValidator(_known),
    WithJsonSchema(
        {
            "type": "object",
            "description": "`kind` names the reward; the other fields are its parameters",
            "required": ["kind"],
            "properties": {"kind": {"type": "string", "enum": list(reward_names())}},
        }
    ),
]


class LookaheadOptions(StrictFields):
    """Options of look-ahead decoding, which steers a text. Not exact: it changes the text."""

    method: Literal["cdsl", "cdlh", "off"]
    reward: RewardField | None = None  # required unless off
    length: int = Field(default=6, ge=1, le=MAX_LENGTH)
    candidates: int = Field(default=8, ge=1, le=MAX_CANDIDATES)
    acceptance: Literal["paper", "gain"] = "gain"
    accept_threshold: float = Field(default=0.0, ge=0.0, le=1.0)
    reward_threshold: float = Field(default=1.0, ge=0.0, le=1.0)
    reward_weight: float = Field(default=8.0, ge=0.0, le=100.0)
    verification: Literal["hard", "speculative_sampling"] = "hard"
    generation: Literal["lookahead", "plain"] = "lookahead"
    rollout: Literal["greedy", "sampled"] = "greedy"
    commit: Literal["token", "gain", "rollout"] = "gain"
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    budget: int | None = Field(default=None, ge=1, le=10**9)
