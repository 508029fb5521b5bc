"""The bench of what schemas cost on the shipped pair: its schemas, lines and claims."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from loadtest.constrained import claims_of, large_schema, main


def test_large_schemas_are_of_their_size_and_all_different() -> None:
    rng = random.Random(0)
    schemas = [large_schema(rng, 5_000) for _ in range(5)]
    assert len(set(schemas)) == 5
    assert all(5_000 <= len(text) < 7_000 for text in schemas)


@pytest.mark.slow
def test_the_command_measures_every_line(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    words = "--batch 2 --tokens 12 --repeats 2 --threads 1"
    assert main([*words.split(), "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert {len(times) for times in found["first_token_ms"].values()} == {2}
    assert {len(times) for times in found["decoding_s"]["2"].values()} == {2}
    assert len(found["claims"]) == 4


def test_claims_are_taken_within_a_turn() -> None:
    first_ms = {"free": [5.0, 50.0, 5.0], "new": [24.0, 69.0, 24.0], "cached": [8.0, 53.0, 8.0]}
    seconds = {"free": [1.0, 2.0], "constrained": [1.04, 2.08], "constrained, forced": [1.1, 2.2]}
    claims = claims_of(first_ms, {1: seconds})
    assert [claim.value for claim in claims] == pytest.approx([19.0, 3.0, 1.04, 1.1])
    assert [claim.is_met for claim in claims] == [True, False, True, False]
