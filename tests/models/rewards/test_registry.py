from __future__ import annotations

from pathlib import Path

import pytest

from models.rewards.registry import Rewards, reward_names
from models.rewards.reward import Scored
from tests.cases.rewards.plugin import write_plugin

CAT, SHORT = {"kind": "words", "required": ["cat"]}, {"kind": "length", "max": 3}


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plugin(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    reward_names.cache_clear()


@pytest.fixture(autouse=True)
def _forget_names():
    yield
    reward_names.cache_clear()


def test_a_sum_weighs_its_parts() -> None:
    reward = Rewards().make(
        {"kind": "weighted", "parts": [{"weight": 3.0, "reward": CAT}, {"reward": SHORT}]}
    )
    assert reward.score("a dog", "", False) == Scored(0.25, False)
    assert reward.score("a cat ", "", False) == Scored(1.0, True)
    assert reward.score("one two three ", "cat ", False) == Scored(0.75, False, can_be_met=False)


def nested(depth: int) -> dict:
    return CAT if depth == 0 else {"kind": "weighted", "parts": [{"reward": nested(depth - 1)}]}


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        ({}, "kind: must be one of concepts, .*got None"),
        ({"kind": "nothing"}, "got 'nothing'"),
        ({"kind": ["words"]}, "kind: must be one of"),
        ({"kind": "length", "min": "1"}, r"^min: .*\(got '1'\)"),
        ({"kind": "length", "mini": 1}, r"^mini: "),
        ({"kind": "weighted", "parts": []}, r"^parts: "),
        ({"kind": "weighted", "parts": [{"weight": 0.0, "reward": CAT}]}, r"^parts\[0\]\.weight: "),
        (
            {"kind": "weighted", "parts": [{"reward": CAT}, {"reward": {"kind": "pattern"}}]},
            r"^parts\[1\]\.reward\.pattern: ",
        ),
        (nested(5), r"parts: weighted sums may be 4 deep"),
        ({"kind": "classifier", "model": "m", "label": "x"}, r"^model: .*none, got 'm'"),
    ],
)
def test_a_wrong_reward_is_refused_by_field(asked: dict, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Rewards().make(asked)


def test_sums_may_be_nested() -> None:
    assert Rewards().make(nested(4)).score("cat", "", True).is_met


@pytest.mark.usefixtures("plugin")
def test_an_installed_package_adds_rewards() -> None:
    rewards = Rewards()
    assert "vowels" in reward_names()
    assert rewards.make({"kind": "vowels", "least": 2}).score("ae", "", True) == Scored(1.0, True)
    within = {"kind": "weighted", "parts": [{"reward": {"kind": "vowels", "least": 4}}]}
    assert rewards.make(within).score("ae", "", False) == Scored(0.5, False)


@pytest.mark.usefixtures("plugin")
def test_one_that_cannot_be_loaded_is_told_and_spares_the_others() -> None:
    rewards = Rewards()
    assert list(rewards.absent) == ["broken"]
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        rewards.make({"kind": "broken"})
    assert rewards.make(CAT).score("cat", "", True).is_met


@pytest.mark.usefixtures("plugin")
def test_a_package_cannot_take_a_name_that_is_here() -> None:
    assert Rewards().make(SHORT).score("a b c d", "", True).is_met is False
