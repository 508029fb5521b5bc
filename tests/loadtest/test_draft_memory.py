"""Memory with and without a draft model: the kept result is that of the estimate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deployments.config.serve_file import read_serve_file
from loadtest.draft_memory import PUBLISHED, main, pair_of, published_size, size_of
from loadtest.report.machine import ROOT

KEPT = json.loads((ROOT / "loadtest" / "results" / "draft-memory.json").read_text(encoding="utf-8"))


def test_the_kept_sizes_of_the_demo_pair_are_those_of_its_config() -> None:
    config = read_serve_file(ROOT / "configs" / "demo.yaml", {}).config
    [demo] = [pair for pair in KEPT["pairs"] if pair["pair"] == "demo pair"]
    for name, model in (("target", config.target), ("draft", config.draft)):
        assert model is not None
        found = size_of(model.model_copy(update={"model_path": str(ROOT / model.model_path)}))
        assert found == demo[name]


def test_a_published_model_is_counted_by_its_shape(tmp_path: Path) -> None:
    """Embedding 2048 x 128256, tied; 16 layers of attention, three projections and two norms."""
    size = published_size(PUBLISHED["Llama 3.2 1B"], tmp_path / "1b")
    layer = 2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 2 * 2048
    assert size["parameters"] == 128_256 * 2048 + 16 * layer + 2048
    assert size["weight_bytes"] == 2 * size["parameters"]
    assert size["kv_bytes_per_token"] == 16 * 2 * 8 * 64 * 2
    assert size == KEPT["pairs"][1]["draft"]


def test_a_draft_adds_its_weights_and_its_blocks_for_all_tokens() -> None:
    target = {"parameters": 4, "weight_bytes": 100, "kv_bytes_per_token": 3}
    draft = {"parameters": 1, "weight_bytes": 10, "kv_bytes_per_token": 1}
    pair = pair_of("x", target, draft, num_tokens=20)
    assert (pair["without_bytes"], pair["with_bytes"]) == (160, 190)


def test_a_number_of_texts_below_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--texts", "0"])
    assert "texts and tokens must be at least 1, got 0, 2048" in capsys.readouterr().err
