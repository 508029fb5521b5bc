"""A trial of the promises on the whole width of requests: valid JSON, texts that no draft moves.

It serves a pair in this process, with the HTTP routes but without a socket. First every sampling
parameter is requested, streamed and not, free and under constraints. This happens without drafts
and in four ways with them. Then random bounded schemas are answered at temperature 1 with several
seeds. k is 0, 4 and adaptive. `jsonschema` checks each finished answer.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from loadtest.frame.pairs import find_pair
from loadtest.matrix.parameters import PARAMETERS, run_parameter
from loadtest.matrix.schemas import run_schemas
from loadtest.matrix.world import Client, demo_client
from loadtest.trial.checks import Limit
from loadtest.trial.scene import Event, Scene
from loadtest.trial.trial import Trial

_SCHEMAS = "schemas"
_Found = TypeVar("_Found")


@dataclass(frozen=True, kw_only=True)
class _Asked(Event):
    """Requests to a served pair, whose event loop is `runner`'s."""

    runner: asyncio.Runner
    client: Client
    stage: str = "process"
    workload: str = "parameters"

    def ask(self, asked: Coroutine[Any, Any, _Found]) -> _Found:
        """Ask, and return what was found.

        Raises:
            RuntimeError: an answer cannot be read. A `ValueError` would be said of the options.
        """
        try:
            return self.runner.run(asked)
        except ValueError as error:
            raise RuntimeError(f"an answer cannot be read: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Parameter(_Asked):
    """One sampling parameter under every constraint, whole and streamed."""

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """See `Event`."""
        cells = self.ask(run_parameter(self.client, self.way, scene.terms.seed))
        scene.notes["cells"] = [dataclasses.asdict(cell) for cell in cells]
        scene.problems += [
            f"{cell.constraint}, {'streamed' if cell.is_stream else 'whole'}: {cell.detail}"
            for cell in cells
            if cell.verdict == "differs"
        ]
        verdicts = Counter(cell.verdict for cell in cells)
        drafted = sum(cell.num_drafted for cell in cells)
        return {
            **{name: verdicts[name] for name in ("same", "refused", "differs")},
            "drafted": drafted,
        }


@dataclass(frozen=True, kw_only=True)
class Schemas(_Asked):
    """Random schemas at temperature 1."""

    way: str = "k = 0, 4, adaptive"
    workload: str = _SCHEMAS

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """See `Event`."""
        terms = scene.terms
        counts = self.ask(
            run_schemas(
                self.client,
                num_schemas=terms.schemas,
                num_seeds=terms.seeds,
                seed=terms.seed,
                limit_s=60.0 * terms.minutes,
            )
        )
        scene.problems += counts.complaints
        return {
            "answers": counts.num_answers,
            "schemas": counts.num_schemas,
            "finished": counts.num_finished,
            "finished_share": counts.finished_share,
            "valid": counts.num_valid,
            "compared": counts.num_compared,
            "same": counts.num_same,
            "drafted": counts.num_drafted,
        }


def _all(scene: Scene) -> Iterator[Event]:
    terms = scene.terms
    with asyncio.Runner() as runner:
        served = demo_client(find_pair(terms.pair), terms.threads)
        client = runner.run(served.__aenter__())
        try:
            for name in terms.parameters:
                yield Parameter(way=name, runner=runner, client=client)
            yield Schemas(runner=runner, client=client)
        finally:
            runner.run(served.__aexit__(None, None, None))


MATRIX = Trial(
    question="do drafts move a text, or does an answer break its schema, over all parameters",
    terms={
        "parameters": tuple(PARAMETERS),
        "schemas": 300,
        "seeds": 3,  # of each schema
        "minutes": 30.0,  # after which no further schema is begun
        "seed": 7,  # of the first request and the schemas
        "threads": 1,  # of each engine
        "pair": "models/demo",
        "finished_share": 0.8,  # of answers under bounded schemas, at least
    },
    choices={"parameters": PARAMETERS},
    quick={"parameters": ("top_p",), "schemas": 1, "seeds": 1},
    place=None,
    events=_all,
    claims=(Limit(workload=_SCHEMAS, measure="finished_share", at_least="finished_share"),),
)
