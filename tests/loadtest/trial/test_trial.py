"""The machine of trials: options, exit status, record; a run that is cut never reads as clean."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest

from loadtest.__main__ import main
from loadtest.experiments.registry import TRIALS
from loadtest.frame.experiment import Result
from loadtest.trial import trial
from loadtest.trial.checks import Limit
from loadtest.trial.command import choose
from loadtest.trial.scene import Event, Scene, Terms
from loadtest.trial.trial import Place, Trial


@dataclass(frozen=True, kw_only=True)
class Bang(Event):
    """It takes as long as it says, and may break something."""

    loud: float
    problem: str = ""
    error: BaseException | None = None

    def happen(self, scene: Scene) -> Mapping[str, float]:
        scene.problems += [self.problem] if self.problem else []
        if self.error is not None:
            raise self.error
        return {"loud_db": self.loud}


def bangs(**changes: Any) -> Trial:
    return Trial(
        question="how loud are bangs",
        terms={"loud": 3.0, "names": ("one", "two"), "limit": 9.0, "is_seen": False},
        quick={"names": ("one",)},
        place=None,
        events=lambda scene: [Bang(way=name, loud=scene.terms.loud) for name in scene.terms.names],
        claims=(Limit(measure="loud_db", at_most="limit"),),
        **changes,
    )


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [("", 0, "met"), ("--set loud=10", 1, "MISSED"), ("--quick", 0, "met")],
)
def test_a_trial_writes_says_and_ends_with_what_held(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: str,
    status: int,
    said: str,
) -> None:
    monkeypatch.setitem(TRIALS, "bangs", bangs())
    output = tmp_path / "some.json"
    assert main(["bangs", "--output", str(output), *words.split()]) == status
    found = json.loads(output.read_text())
    assert found["command"].startswith("python -m loadtest bangs --output some.json")
    assert found["settings"]["limit"] == 9.0
    assert [row["way"] for row in found["samples"]] == ["one", "two"][
        : 1 if words == "--quick" else 2
    ]
    assert found["claims"][0]["is_met"] == (not status)
    assert output.with_suffix(".png").stat().st_size > 1000
    assert said in capsys.readouterr().out


def test_a_problem_fails_a_trial() -> None:
    bang = Bang(way="one", loud=1.0, problem="it broke")
    scene = Scene(terms=Terms(**bangs().terms))
    one = replace(bangs(), events=partial(lambda bang, scene: [bang], bang))
    found = one.run(scene)
    assert found.problems == ["one: it broke"]
    assert found.extra["events"][0]["problems"] == ["it broke"]
    assert not one.is_clean(scene)


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), psutil.NoSuchProcess(7), httpx.ConnectError("refused")],
    ids=lambda error: type(error).__name__,
)
def test_a_trial_that_is_cut_off_is_not_clean_and_keeps_its_logs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException
) -> None:
    kept = []

    @contextlib.contextmanager
    def served(config: Path, *, keeps_folder: Any, **_: Any) -> Iterator[Any]:
        try:
            yield SimpleNamespace(folder=tmp_path, base_url="http://nowhere")
        finally:
            kept.append(keeps_folder())

    monkeypatch.setattr(trial, "measured", served)
    events = [Bang(way="one", loud=1.0), Bang(way="two", loud=1.0, error=error)]
    cut = replace(bangs(), place=Place(is_watched=False), events=lambda scene: events)
    told: list[Result] = []
    with pytest.raises(type(error)):
        choose(cut, is_quick=False, given=()).run(told.append)
    [found] = told
    assert [row["way"] for row in found.rows] == ["one"]
    assert found.problems == [f"ended early: {type(error).__name__}: {error}"]
    assert kept == [True]


def test_terms_are_read_as_their_usual_values_are() -> None:
    given = ["loud=4", "names=a,b,c", "is_seen=true"]
    settings = choose(bangs(), is_quick=True, given=given).settings
    assert settings == {"loud": 4.0, "names": ("a", "b", "c"), "limit": 9.0, "is_seen": True}


@pytest.mark.parametrize("name", TRIALS)
def test_every_trial_has_a_smallest_form_of_its_own_terms(name: str) -> None:
    one = TRIALS[name]
    assert one.quick.keys() <= one.terms.keys()
    for terms in (one.terms, {**one.terms, **one.quick}):
        assert all(set(terms[name]) <= set(known) for name, known in one.choices.items())
    assert one.claims_of([], Terms(**one.terms)) == []
