"""The `user_config` of a Draft deployment: what is asked for, and which folders are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.config.live_draft import WantedDraft, wanted_draft
from deployments.config.model_files import fitted, resolved, with_shared_vocabulary
from deployments.config.schema import AppConfig
from deployments.config.sections.models import ModelConfig
from deployments.config.serve_file import read_serve_file
from loadtest.report.machine import ROOT
from tests.deployments.config.test_damaged_files import SMALL, STORED, Damage, edit
from tests.harness.local import DEMO


@pytest.fixture(scope="module")
def base() -> ModelConfig:
    """As the replica has it."""
    models = {name: {"model_path": str(DEMO / name)} for name in ("target", "draft")}
    config = with_shared_vocabulary(resolved(fitted(AppConfig.model_validate(models))))
    assert config.draft is not None
    return config.draft


@pytest.mark.parametrize("nothing", [None, {}, {"model_path": ""}, {"promote": "now"}])
def test_without_a_path_the_model_of_args_is_wanted(base: ModelConfig, nothing: Any) -> None:
    assert wanted_draft(base, nothing) == WantedDraft(model=base)


def test_another_folder_has_the_limits_of_args(base: ModelConfig, folder: Path) -> None:
    edit("config.json", max_position_embeddings=77)(folder)
    wanted = wanted_draft(base, {"model_path": str(folder), "compare_answers": 5})
    assert (wanted.promote, wanted.compare_answers) == ("better", 5)
    changes = {"model_path": str(folder), "max_model_len": 77}
    assert wanted.model == base.model_copy(update=changes)
    assert wanted.model.vocab_size == 4096


@pytest.mark.parametrize(
    ("user_config", "complaint"),
    [
        ({"model_pat": "/x"}, r"user_config: unknown key 'model_pat'"),
        ({"promote": "soon"}, r"user_config: promote: .*'better' or 'now' \(got 'soon'\)"),
        ({"compare_timeout_s": 0}, r"user_config: compare_timeout_s: .*greater than 0 \(got 0\)"),
        ({"compare_answers": 0}, r"user_config: compare_answers: .*greater than 0 \(got 0\)"),
        ([1], r"user_config: .*got \[1\]"),
        ({"model_path": "models/demo/draft"}, r"model_path: must be the absolute path"),
        ({"model_path": "/no/such"}, r"model_path: .*a folder on this node, got '/no/such'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    base: ModelConfig, user_config: Any, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        wanted_draft(base, user_config)


def give_other_words(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"<|pad|>"', '"<|dap|>"'))


SPOILT = {"words": (give_other_words, "must share one vocabulary")} | {
    name: (SMALL | STORED)[name]
    for name in ("weights-missing", "weights-cut", "tokenizer-elsewhere", "tokenizer-other")
}


@pytest.mark.parametrize(("damage", "said"), SPOILT.values(), ids=SPOILT)
def test_a_folder_that_does_not_fit_is_refused(
    base: ModelConfig, folder: Path, damage: Damage, said: str
) -> None:
    damage(folder)
    with pytest.raises(ValueError, match=rf"user_config: model_path: .*{said}"):
        wanted_draft(base, {"model_path": str(folder)})


def test_a_serve_file_is_checked_for_its_keys(tmp_path: Path) -> None:
    tree = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    [draft] = [one for one in tree["applications"][0]["deployments"] if one["name"] == "Draft"]
    path = tmp_path / "demo.yaml"
    draft["user_config"] = {"model_path": "/on/the/node", "promote": "now"}
    path.write_text(yaml.safe_dump(tree))
    read_serve_file(path)
    draft["user_config"] = {"k": 3}
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(ValueError, match="user_config: unknown key 'k'"):
        read_serve_file(path)
