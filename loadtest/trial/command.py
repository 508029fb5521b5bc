"""A trial with the options of the command line, run as an experiment is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.frame.claims import Claim
from loadtest.frame.experiment import Result
from loadtest.trial.scene import Scene, Terms
from loadtest.trial.trial import Trial


@dataclass(frozen=True, kw_only=True)
class ChosenTrial:
    """A trial with its terms; a missed claim is as bad as a problem.

    Attributes:
        trial: what is run.
        settings: its terms by name, for the record.
        config: a Serve config file in place of the trial's.
        urls: of services that run; none: one of our own is started.
    """

    trial: Trial
    settings: Mapping[str, Any]
    config: Path | None = None
    urls: Sequence[str] = ()

    @property
    def question(self) -> str:
        """Return the question in words."""
        return self.trial.question

    @property
    def base(self) -> str:
        """The way that others are compared with; "": none is."""
        return self.trial.base

    def run(self, keep: Callable[[Result], None]) -> Result:
        """Run the trial; `keep` gets what was found at any end, Ctrl-C included."""
        scene = Scene(terms=Terms(**self.settings), urls=self.urls)
        try:
            return self.trial.run(scene, self.config)
        except BaseException:
            keep(scene.result)
            for problem in scene.result.problems:
                print(f"VIOLATED: {problem}", flush=True)
            raise

    def claims(self, result: Result) -> list[Claim]:
        """Return the claims that the result has figures for."""
        return self.trial.claims_of(result.rows, Terms(**self.settings))

    def theory(self, result: Result) -> list[dict[str, Any]]:
        """Return nothing: there is no theory of trials."""
        return []

    def has_failed(self, result: Result) -> bool:
        """Return whether something did not hold."""
        return bool(result.problems) or not all(claim.is_met for claim in self.claims(result))


def choose(
    trial: Trial,
    *,
    is_quick: bool,
    given: Sequence[str],
    config: Path | None = None,
    urls: Sequence[str] = (),
) -> ChosenTrial:
    """Return a trial with options.

    Args:
        trial: to run.
        is_quick: take the smallest form.
        given: NAME=VALUE for each term that is not as usual; values of a list have commas.
        config, urls: see `ChosenTrial`.

    Raises:
        ValueError: there is no such term, or it has no such value; or it asks no other service.
    """
    most = trial.place.num_urls if trial.place else 0
    if len(urls) > most:
        raise ValueError(f"--url: given {len(urls)} times, this trial asks at most {most}")
    terms = {**trial.terms, **(trial.quick if is_quick else {})}
    for words in given:
        name, _, text = words.partition("=")
        if name not in terms:
            raise ValueError(f"--set: must be of {', '.join(terms)}, got {name!r}")
        try:
            terms[name] = _read(text, trial.terms[name])
        except ValueError:
            raise ValueError(
                f"--set: {name} must be like {trial.terms[name]!r}, got {text!r}"
            ) from None
    for name, known in trial.choices.items():
        if unknown := [word for word in terms[name] if word not in known]:
            raise ValueError(f"--set: {name} must be of {', '.join(known)}, got {unknown[0]!r}")
    return ChosenTrial(trial=trial, settings=terms, config=config, urls=urls)


def _read(text: str, usual: Any) -> Any:
    if isinstance(usual, tuple):
        return tuple(_read(part, usual[0]) for part in text.split(","))
    if isinstance(usual, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    return type(usual)(text)
