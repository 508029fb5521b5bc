"""The page of all keys is what the fields say, and values are told from their defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.config.__main__ import main
from deployments.config.reference import COMMAND, differing, keys_page
from deployments.config.schema import AppConfig
from loadtest.report.machine import ROOT
from models.config import Section

PAGE = ROOT / "deployments" / "docs" / "config-keys.md"


def test_the_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--keys"]) == 0
    assert capsys.readouterr().out == PAGE.read_text(encoding="utf-8"), f"run `{COMMAND}`"


def test_the_page_can_be_written(tmp_path: Path) -> None:
    assert main(["--keys", "--output", str(tmp_path / "keys.md")]) == 0
    assert (tmp_path / "keys.md").read_bytes() == PAGE.read_bytes()
    with pytest.raises(SystemExit):
        main(["configs/demo.yaml", "--keys"])


def leaves(section: Section, path: str = "") -> Iterator[tuple[str, str]]:
    """Every key of a valid section that holds a value, with the path of its section."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from leaves(value, f"{path}.{name}".lstrip("."))
        elif name != "drafts":
            yield path, name


def test_every_key_is_on_the_page() -> None:
    model = {"model_path": "x"}
    config = AppConfig.model_validate({"target": model, "draft": model})
    page = {
        path: part
        for part in keys_page().split("\n## ")[1:]
        for path in re.findall(r"`([\w.]+)`", part.splitlines()[0])
    }
    found = list(leaves(config))
    assert len(found) > 100
    for path, name in found:
        assert f"\n| `{name}` |" in page[path or name], f"{path}.{name}"


def test_what_is_a_default_is_left_out_and_all_else_stays() -> None:
    speculation = {"enabled": True, "prompt_lookup_max": 0, "no_such": 1}
    tree = {
        "target": {"model_path": "x", "dtype": "bfloat16", "kv_cache_tokens": None},
        "draft": None,
        "drafts": {"tiny": {"model_path": "y", "max_num_seqs": 64}},
        "router": {"speculation": speculation, "timeouts": {"queue_wait_s": 15}},
        "link": {},
    }
    assert differing(AppConfig, tree) == {
        "target": {"model_path": "x", "kv_cache_tokens": None},
        "drafts": {"tiny": {"model_path": "y"}},
        "router": {"speculation": {"prompt_lookup_max": 0, "no_such": 1}},
    }
