from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.protocol.rewards import RewardRefused, RewardScored
from models.rewards.classifier import Classifier, label_reward
from models.rewards.registry import Rewards
from tests.cases.rewards.classifier import BAD, GOOD, write_tiny_classifier
from tests.harness.rewards.workers import ask, serving_rewards

POSITIVE: dict[str, Any] = {"model": "mood", "label": "POSITIVE"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_classifier(tmp_path_factory.mktemp("mood"))


def test_the_probability_of_a_label_is_the_score(folder: Path) -> None:
    reward = label_reward({"mood": Classifier(str(folder))}, POSITIVE | {"threshold": 0.8})
    good = reward.score("the day was ", GOOD[0], is_end=True)
    bad = reward.score("the day was ", BAD[1], is_end=False)
    assert good.score > 0.8
    assert good.is_met
    assert bad.score < 0.2
    assert (bad.is_met, bad.can_be_met) == (False, True)
    assert not reward.score("the day was ", BAD[1], is_end=True).can_be_met
    assert reward.score("", " ", is_end=False).score == 0.0


def test_a_text_beyond_the_classifiers_context_is_judged_by_its_end(folder: Path) -> None:
    reward = label_reward({"mood": Classifier(str(folder))}, POSITIVE)
    assert reward.score(f"{BAD[0]} " * 100, f"{GOOD[0]} " * 80, is_end=False).is_met


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        ({"model": "other", "label": "POSITIVE"}, "model: must be one of mood, got 'other'"),
        ({"model": "mood", "label": "HAPPY"}, "label: must be one of NEGATIVE, POSITIVE"),
        ({"model": "mood", "label": "POSITIVE", "threshold": 0.0}, "threshold: "),
        ({"model": "mood"}, "label: "),
    ],
)
def test_a_wrong_label_is_refused(folder: Path, asked: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Rewards({"mood": Classifier(str(folder))}).make({"kind": "classifier"} | asked)


def test_a_folder_without_a_classifier_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        Classifier(str(tmp_path))


async def test_classifiers_of_the_config_answer_in_forks(folder: Path) -> None:
    reward = {"kind": "classifier"} | POSITIVE
    both = {
        "kind": "weighted",
        "parts": [{"reward": reward}, {"reward": {"kind": "length", "max": 9}}],
    }
    async with serving_rewards(reward_classifiers={"mood": str(folder)}) as workers:
        workers.begin()
        answer = await ask(workers, reward, "the day was ", [GOOD[0], BAD[0]])
        assert isinstance(answer, RewardScored)
        first, second = answer.scores
        assert first.score > 0.8 > 0.2 > second.score
        again = await ask(workers, both, "the day was ", [GOOD[0]])
        assert isinstance(again, RewardScored)
        assert again.scores[0].score == pytest.approx((first.score + 1.0) / 2, abs=1e-6)


async def test_a_classifier_that_cannot_be_loaded_is_no_clients_error(tmp_path: Path) -> None:
    async with serving_rewards(reward_classifiers={"mood": str(tmp_path)}) as workers:
        answer = await ask(workers, {"kind": "words", "required": ["a"]})
        assert isinstance(answer, RewardRefused)
        assert not answer.is_client_error
        assert "config.json is missing" in answer.message
