"""The bench of forced text on the shipped pair: every way is there, and they agree on the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.forced import WAYS, claims_of, main


@pytest.mark.slow
def test_the_command_measures_every_way(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    words = "--schemas enums --tokens 48 --repeats 1 --threads 1"
    assert main([*words.split(), "--output", str(output)]) == 0
    [found] = json.loads(output.read_text())["schemas"]
    assert set(found["tokens_per_s"]) == set(WAYS)
    assert all(rate > 0 for rate in found["tokens_per_s"].values())
    assert found["forced_share"] > 0.5
    assert found["forced_acceptance"] > 0.9
    assert found["settled_share"]["any"] < found["settled_share"]["fixed"]


@pytest.mark.parametrize(("ratio", "is_met"), [(1.2, True), (0.9, False)])
def test_the_claim_is_about_long_keys(ratio: float, is_met: bool) -> None:
    found = [
        {"schema": name, "to_no_grammar": {"plain, forced": value}}
        for name, value in (("order", 0.1), ("long keys", ratio))
    ]
    [claim] = claims_of(found)
    assert claim.is_met == is_met
