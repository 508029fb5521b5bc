"""A small classifier as a reward: sentiment, harmlessness, or whatever its labels are.

It is a checkpoint of transformers for sequence classification with its tokenizer. The operator
names its local folder in the config. Nothing is fetched, and no code of the folder is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from models.rewards.reward import RewardFields, Scored

_MAX_TOKENS = 512  # the end of a longer text counts


class Classifier:
    """A classifier that is loaded, on the CPU with one thread: a process forks from here."""

    def __init__(self, folder: str) -> None:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        if not (Path(folder) / "config.json").is_file():
            raise ValueError(f"{folder}: no classifier is there, config.json is missing")
        torch.set_num_threads(1)  # threads do not survive a fork
        kept: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        self._tokenizer = AutoTokenizer.from_pretrained(folder, truncation_side="left", **kept)
        self._model = AutoModelForSequenceClassification.from_pretrained(folder, **kept).eval()
        limit = getattr(self._model.config, "max_position_embeddings", None) or _MAX_TOKENS
        self._max_tokens = min(int(limit), _MAX_TOKENS)

    @cached_property
    def labels(self) -> list[str]:
        """Its labels, in the order of its logits."""
        names: dict[int, str] = self._model.config.id2label
        return [names[index] for index in sorted(names)]

    def probs(self, text: str) -> list[float]:
        """Return the probability of each label."""
        import torch

        with torch.inference_mode():
            inputs = self._tokenizer(
                text, return_tensors="pt", truncation=True, max_length=self._max_tokens
            )
            logits = self._model(**inputs).logits[0].float()
            found: list[float] = logits.softmax(dim=-1).tolist()
        return found


class _Asked(RewardFields):
    model: Annotated[str, Field(min_length=1, max_length=64)]
    label: Annotated[str, Field(min_length=1, max_length=64)]
    threshold: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5


class LabelReward(BaseModel):
    """Probability of a label; met from `threshold` on."""

    model_config = ConfigDict(arbitrary_types_allowed=True, frozen=True)

    classifier: Classifier
    index: int
    threshold: float

    def score(self, text: str, lookahead: str, is_end: bool) -> Scored:
        """See `Reward.score`."""
        whole = text + lookahead
        prob = self.classifier.probs(whole)[self.index] if whole.strip() else 0.0
        is_met = prob >= self.threshold
        return Scored(min(max(prob, 0.0), 1.0), is_met, is_met or not is_end)


def label_reward(
    classifiers: Mapping[str, Classifier], parameters: Mapping[str, Any]
) -> LabelReward:
    """Return a reward by one of the present classifiers.

    Raises:
        ValueError: it or its label is not there.
    """
    asked = _Asked.model_validate(parameters)
    classifier = classifiers.get(asked.model)
    if classifier is None:
        there = (
            f"one of {', '.join(classifiers)}" if classifiers else "in the config, which has none"
        )
        raise ValueError(f"model: must be {there}, got {asked.model!r}")
    if asked.label not in classifier.labels:
        raise ValueError(
            f"label: must be one of {', '.join(classifier.labels)}, got {asked.label!r}"
        )
    return LabelReward(
        classifier=classifier,
        index=classifier.labels.index(asked.label),
        threshold=asked.threshold,
    )
