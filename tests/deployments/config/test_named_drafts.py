"""Draft models under names of their own: which names, where they are placed, what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from deployments.config.live_limits import with_user_config
from deployments.config.model_files import check_models, fitted, resolved, with_shared_vocabulary
from deployments.config.placement import default_placements, placements_of
from deployments.config.schema import AppConfig
from tests.harness.local import DEMO

DRAFT = {"model_path": str(DEMO / "draft"), "max_model_len": 256}


def tree(**fields: Any) -> dict[str, Any]:
    return {"target": {"model_path": str(DEMO / "target"), "max_model_len": 256}} | fields


def read(**fields: Any) -> AppConfig:
    return AppConfig.model_validate(tree(**fields))


@pytest.mark.parametrize("name", ["draft", "suffix", "draft_model", "Tiny", "a b", "", "x" * 33])
def test_a_name_that_means_something_else_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"drafts: .*got {re.escape(repr(name))}"):
        read(drafts={name: DRAFT})


def test_names_are_those_of_drafters_and_shares() -> None:
    speculation = {"method": "tiny", "draft_shares": {"tiny": 0.4, "draft_model": 0.6}}
    config = read(draft=DRAFT, drafts={"tiny": DRAFT}, router={"speculation": speculation})
    assert config.draft_pools == ("draft", "tiny")
    assert list(config.models) == ["target", "draft", "drafts.tiny"]
    with pytest.raises(ValueError, match=r"method: must be one of .*tiny.*, got 'huge'"):
        read(drafts={"tiny": DRAFT}, router={"speculation": {"method": "huge"}})
    with pytest.raises(ValueError, match=r"draft_shares: must name draft models \(tiny\), got 'x'"):
        read(drafts={"tiny": DRAFT}, router={"speculation": {"draft_shares": {"x": 1}}})


@pytest.mark.parametrize(
    ("shares", "complaint"),
    [
        ({"tiny": 0.7, "draft_model": 0.5}, "draft_shares must be at most 1 together, got 1.2"),
        ({"tiny": -0.1}, "draft_shares.tiny: .*greater than or equal to 0"),
        ({"tiny": 1.5}, "draft_shares.tiny: .*less than or equal to 1"),
    ],
)
def test_shares_that_make_no_sense_are_refused(shares: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(
            draft=DRAFT,
            drafts={"tiny": DRAFT},
            router={"speculation": {"draft_shares": shares}},
        )


def test_shares_of_tenths_may_be_all_sessions() -> None:
    names = [f"d{number}" for number in range(10)]
    shares = dict.fromkeys(names, 0.1)  # 0.1 ten times over is not 1.0 as floats add up
    drafts = dict.fromkeys(names, DRAFT)
    config = read(drafts=drafts, router={"speculation": {"draft_shares": shares}})
    assert config.router.speculation.draft_shares == shares


@pytest.mark.parametrize(
    ("drafted_by", "complaint"),
    [
        (
            {"draft_model": "x"},
            r"drafted_by: must name .*\(draft_model, tiny\), got 'x'",
        ),
        ({"y": "tiny"}, r"drafted_by: must name draft models .*got 'y'"),
        ({"suffix": "tiny"}, r"drafted_by: must name draft models .*got 'suffix'"),
        ({"tiny": "tiny"}, "drafted_by: a draft model that drafts for another is drafted for by"),
        ({"draft_model": "tiny", "tiny": "draft_model"}, "got 'tiny' for 'draft_model' and"),
    ],
)
def test_who_drafts_for_a_draft_model_is_one_that_is_there(
    drafted_by: dict[str, str], complaint: str
) -> None:
    drafts = {"draft": DRAFT, "drafts": {"tiny": DRAFT}}
    with pytest.raises(ValueError, match=complaint):
        read(**drafts, router={"speculation": {"drafted_by": drafted_by}})
    config = read(**drafts, router={"speculation": {"drafted_by": {"draft_model": "tiny"}}})
    assert config.router.speculation.drafted_by == {"draft_model": "tiny"}


def test_shares_change_while_it_serves_if_their_draft_models_are_there() -> None:
    config = read(draft=DRAFT, drafts={"tiny": DRAFT})
    changes = {"speculation": {"draft_shares": {"tiny": 0.25}}}
    router = with_user_config(config.router, changes, config.draft_pools)
    assert router.speculation.draft_shares == {"tiny": 0.25}
    with pytest.raises(ValueError, match=r"user_config: speculation\.draft_shares: .*got 'tiny'"):
        with_user_config(config.router, changes, ["draft"])


@pytest.mark.parametrize("name", ["heads", "mtp", "early_exit"])
def test_no_draft_has_the_name_of_heads(name: str) -> None:
    with pytest.raises(ValueError, match=rf"be none of .*{name}.*, got '{name}'"):
        read(drafts={name: DRAFT})


@pytest.mark.parametrize("key", ["heads", "early_exit"])
def test_only_a_target_drafts_by_itself(key: str) -> None:
    value = {"heads": str(DEMO / "mtp"), "early_exit": 1}[key]
    with pytest.raises(ValueError, match=rf"drafts\.tiny\.{key}: only a target"):
        read(drafts={"tiny": DRAFT | {key: value}})


def test_each_has_a_placement_that_a_file_can_change() -> None:
    config = read(drafts={"tiny": DRAFT | {"tensor_parallel_size": 2}})
    names = [placement.name for placement in default_placements(config)]
    assert names == ["Router", "Target", "Draft-tiny", "Constraint"]
    overrides = [{"name": "Draft-tiny", "num_replicas": 3}]
    [placement] = [one for one in placements_of(config, overrides) if one.name == "Draft-tiny"]
    assert (placement.min_replicas, len(placement.bundles)) == (3, 2)
    overrides = [{"name": "Draft-tiny", "placement_group_bundles": [{"CPU": 1}]}]
    with pytest.raises(ValueError, match="Draft-tiny: placement_group_bundles has 1 bundles"):
        placements_of(config, overrides)


def test_paths_windows_and_vocabularies_of_all_are_looked_after() -> None:
    draft = {"model_path": "models/demo/draft"}
    config = resolved(fitted(read(draft=DRAFT, drafts={"tiny": draft})))
    assert Path(config.drafts["tiny"].model_path).is_absolute()
    assert config.drafts["tiny"].vocab_size is None
    shared = with_shared_vocabulary(config)
    assert shared.draft is not None
    assert shared.draft.vocab_size is not None
    assert shared.drafts["tiny"].vocab_size == shared.draft.vocab_size


def test_a_draft_of_other_words_is_refused_by_its_key(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"Once"', '"Twice"', 1).replace('"the"', '"eht"', 1))
    config = resolved(read(drafts={"tiny": {"model_path": str(folder), "max_model_len": 256}}))
    with pytest.raises(ValueError, match=r"drafts\.tiny\.model_path"):
        check_models(config)
