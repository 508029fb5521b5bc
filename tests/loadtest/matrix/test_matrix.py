"""The matrix of requests: a slice of it on the demo pair, and what counts as a violation."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.__main__ import main
from loadtest.fuzz.engines.grammars import random_schema
from loadtest.matrix import trial
from loadtest.matrix.parameters import CONSTRAINTS, Cell
from loadtest.matrix.schemas import Counts, bounded
from loadtest.matrix.trial import MATRIX, Parameter, Schemas
from loadtest.trial.scene import Event, Scene, Terms, happen


@pytest.mark.slow
def test_a_slice_holds(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    words = ["matrix", "--set", "schemas=5", "seeds=1", "parameters=top_p,logprobs,n"]
    assert main([*words, "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    *parameters, schemas = found["samples"]
    assert [row["way"] for row in parameters] == ["top_p", "logprobs", "n"]
    for row, event in zip(parameters, found["events"][:-1], strict=True):
        assert row["runs"]["same"] == [len(CONSTRAINTS) * 2]
        assert row["runs"]["differs"] == [0]
        drafted = {cell["constraint"]: cell["num_drafted"] for cell in event["cells"]}
        assert all(drafted[name] for name in ("free", "JSON schema")), row["way"]
    runs = {name: value for name, (value,) in schemas["runs"].items()}
    assert runs["answers"] == 5 * 3
    assert runs["valid"] == runs["finished"]
    assert runs["same"] == runs["compared"] == 5 * 2
    assert runs["drafted"] > 0


def test_bounded_schemas_leave_nothing_open() -> None:
    def parts(schema: Any) -> list[dict[str, Any]]:
        if isinstance(schema, list):
            return [part for one in schema for part in parts(one)]
        if not isinstance(schema, dict):
            return []
        return [schema, *(part for one in schema.values() for part in parts(one))]

    rng = random.Random(1)
    found = [part for _ in range(200) for part in parts(bounded(random_schema(rng)))]
    kinds = {str(part.get("type")) for part in found}
    assert {"object", "array", "string", "integer", "number"} <= kinds
    for part in found:
        if part.get("type") == "object":
            assert part["additionalProperties"] is False
        if part.get("type") == "integer":
            assert part["maximum"] >= part["minimum"]
        if part.get("type") == "array":
            assert "maxItems" in part


@pytest.fixture
def asked() -> Iterator[Any]:
    """A function that makes an event of a kind whose requests nobody serves."""
    with asyncio.Runner() as runner:
        client: Any = None

        def make(kind: Any, **fields: Any) -> Event:
            event: Event = kind(runner=runner, client=client, **fields)
            return event

        yield make


def scene_of(**terms: Any) -> Scene:
    return Scene(terms=Terms(**{**MATRIX.terms, **terms}))


def test_a_difference_is_a_problem(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(client: Any, parameter: str, seed: int) -> list[Cell]:
        held = Cell(parameter, "regex", is_stream=False, verdict="same", num_drafted=3)
        return [held, Cell(parameter, "free", True, "differs", num_drafted=3, detail="why")]

    monkeypatch.setattr(trial, "run_parameter", found)
    scene = scene_of()
    figures = asked(Parameter, way="n").happen(scene)
    assert figures == {"same": 1, "refused": 0, "differs": 1, "drafted": 6}
    assert scene.problems == ["free, streamed: why"]


@pytest.mark.parametrize(("num_finished", "is_met"), [(8, True), (7, False)])
def test_broken_texts_are_problems_and_few_ends_miss_a_claim(
    asked: Any, monkeypatch: pytest.MonkeyPatch, num_finished: int, is_met: bool
) -> None:
    async def found(*args: Any, **terms: Any) -> Counts:
        return Counts(num_answers=10, num_finished=num_finished, complaints=["broken"])

    monkeypatch.setattr(trial, "run_schemas", found)
    scene = scene_of()
    assert happen(scene, asked(Schemas)) == ["broken"]
    (claim,) = MATRIX.claims_of(scene.result.rows, scene.terms)
    assert claim.is_met is is_met
