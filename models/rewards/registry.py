"""All rewards that a process can make: those of this package, and those of entry points.

An installed package adds its own with an entry point of the group `outrider.rewards`. It has the
name that requests give as `kind`, and a factory (`reward.Factory`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Annotated, Any

from pydantic import Field, ValidationError

from models.rewards.classifier import Classifier, label_reward
from models.rewards.reward import Factory, Reward, RewardFields, Scored
from models.rewards.shape import Length, Pattern, Readability
from models.rewards.words import Concepts, Words

GROUP = "outrider.rewards"
_MAX_DEPTH = 4  # levels of weighted sums within weighted sums
_OfText = Concepts | Words | Length | Pattern | Readability
_OWN: dict[str, type[_OfText]] = {
    "concepts": Concepts,
    "words": Words,
    "length": Length,
    "pattern": Pattern,
    "readability": Readability,
}


class _Part(RewardFields):
    weight: Annotated[float, Field(gt=0.0, le=1000.0)] = 1.0
    reward: dict[str, Any]


class _Parts(RewardFields):
    parts: Annotated[list[_Part], Field(min_length=1, max_length=16)]


class WeightedSum:
    """The mean of several rewards' scores by their weights; met where all are."""

    def __init__(self, parts: list[tuple[float, Reward]]) -> None:
        self._parts = parts

    def score(self, text: str, lookahead: str, is_end: bool) -> Scored:
        """See `Reward.score`."""
        scored = [(weight, part.score(text, lookahead, is_end)) for weight, part in self._parts]
        total = sum(weight for weight, _ in scored)
        return Scored(
            sum(weight * one.score for weight, one in scored) / total,
            all(one.is_met for _, one in scored),
            all(one.can_be_met for _, one in scored),
        )


class Rewards:
    """Makes rewards of requests' parameters.

    Args:
        classifiers: that are loaded, by the names that requests give.

    Attributes:
        absent: entry points that cannot be loaded, and why.
    """

    def __init__(self, classifiers: Mapping[str, Classifier] | None = None) -> None:
        self.absent: dict[str, str] = {}
        self._factories: dict[str, Factory] = {
            name: kind.model_validate for name, kind in _OWN.items()
        }
        self._factories["classifier"] = partial(label_reward, classifiers or {})
        self._depth = 0
        self._factories["weighted"] = self._weighted
        for point in entry_points(group=GROUP):
            try:
                self._factories.setdefault(point.name, point.load())
            except Exception as error:  # noqa: BLE001 - anything may happen in a stranger's module
                self.absent[point.name] = f"{type(error).__name__}: {error}"

    def make(self, asked: Mapping[str, Any]) -> Reward:
        """Make the reward of a request from its `kind` and the parameters of that.

        Raises:
            ValueError: there is none of this kind, or its parameters are wrong; names the field.
        """
        kind = asked.get("kind")
        factory = self._factories.get(kind) if isinstance(kind, str) else None
        if factory is None:
            why = f" ({self.absent[kind]})" if isinstance(kind, str) and kind in self.absent else ""
            raise ValueError(
                f"kind: must be one of {', '.join(self._factories)}, got {kind!r}{why}"
            )
        try:
            return factory({name: value for name, value in asked.items() if name != "kind"})
        except ValidationError as error:
            raise ValueError(_first(error)) from None

    def _weighted(self, parameters: Mapping[str, Any]) -> Reward:
        parts = _Parts.model_validate(parameters).parts
        if self._depth == _MAX_DEPTH:
            raise ValueError(f"parts: weighted sums may be {_MAX_DEPTH} deep")
        self._depth += 1
        try:
            return WeightedSum(
                [(part.weight, self._part(index, part)) for index, part in enumerate(parts)]
            )
        finally:
            self._depth -= 1

    def _part(self, index: int, part: _Part) -> Reward:
        try:
            return self.make(part.reward)
        except ValueError as error:
            raise ValueError(f"parts[{index}].reward.{error}") from None


@cache
def reward_names() -> tuple[str, ...]:
    """Return the kinds that requests may name, by the installed packages; load none of them."""
    found = dict.fromkeys([*_OWN, "classifier", "weighted"])
    return tuple(found | dict.fromkeys(point.name for point in entry_points(group=GROUP)))


def _first(error: ValidationError) -> str:
    """Return the first fault, by the path of its field."""
    fault = error.errors()[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"])
    message = fault["msg"].removeprefix("Value error, ")
    return f"{path[1:]}: {message} (got {str(fault['input'])[:80]!r})" if path else message
