"""The matrix of requests: a slice of it on the demo pair, and what counts as a violation."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from loadtest.fuzz.engines.grammars import random_schema
from loadtest.matrix.__main__ import Report, main
from loadtest.matrix.parameters import CONSTRAINTS, Cell
from loadtest.matrix.schemas import Counts, bounded


@pytest.mark.slow
def test_a_slice_holds(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    words = "--schemas 5 --seeds 1 --parameters top_p logprobs n"
    assert main([*words.split(), "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert {cell["verdict"] for cell in found["parameters"]} == {"same"}
    assert len(found["parameters"]) == 3 * len(CONSTRAINTS) * 2
    for constraint in ("free", "JSON schema"):
        drafted = [c["num_drafted"] for c in found["parameters"] if c["constraint"] == constraint]
        assert all(drafted), constraint
    schemas = found["schemas"]
    assert schemas["num_answers"] == 5 * 3
    assert schemas["num_valid"] == schemas["num_finished"]
    assert schemas["num_same"] == schemas["num_compared"] == 5 * 2
    assert schemas["num_drafted"] > 0


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


def test_differences_broken_texts_and_few_ends_are_violations() -> None:
    held = Cell("top_p", "free", is_stream=True, verdict="same", num_drafted=3)
    counts = Counts(num_answers=10, num_finished=8)
    assert Report(cells=[held], counts=counts).is_clean
    differing = Cell("n", "free", is_stream=True, verdict="differs", num_drafted=3, detail="why")
    assert Report(cells=[held, differing]).problems == ["n, free, streamed: why"]
    assert Report(counts=Counts(complaints=["broken"])).problems == ["broken"]
    (few,) = Report(counts=Counts(num_answers=10, num_finished=7)).problems
    assert few == "70% of the answers finished, at least 80% should"
