"""Models with Serve applications of their own: one service in several entries of a file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.config.applications import applications_of
from deployments.config.schema import AppConfig
from deployments.config.sections.models import ModelArgs
from deployments.config.serve_file import ServeFile, read_serve_text
from tests.harness.local import DEMO

TARGET = {"model_path": str(DEMO / "target"), "max_model_len": 512}
DRAFT = {"model_path": str(DEMO / "draft"), "max_num_seqs": 9}
PARTS: dict[str, Any] = {
    "applications": [
        {
            "name": "outrider",
            "import_path": "deployments.app:build",
            "args": {
                "applications": {"target": "big", "draft": "small"},
                "target": dict(TARGET),
                "router": {"max_sessions": 8, "speculation": {"method": "draft_model"}},
            },
            "deployments": [{"name": "Router", "num_replicas": 2}],
        },
        {
            "name": "big",
            "import_path": "deployments.app:build_model",
            "route_prefix": None,
            "args": {"target": {**TARGET, "max_num_seqs": 20}},
            "deployments": [{"name": "Target", "num_replicas": 2}],
        },
        {
            "name": "small",
            "import_path": "deployments.app:build_model",
            "route_prefix": None,
            "args": {"target": {"model_path": TARGET["model_path"]}, "draft": dict(DRAFT)},
        },
    ]
}


def read(**changes: Any) -> ServeFile:
    return read_serve_text(yaml.safe_dump(PARTS), changes)


def args_of(served: ServeFile) -> dict[str, dict[str, Any]]:
    return {one["name"]: one.get("args") or {} for one in served.tree["applications"]}


def test_the_parts_are_read_as_one_service() -> None:
    served = read()
    assert served.config == AppConfig.model_validate(
        {
            "target": {**TARGET, "max_num_seqs": 20},
            "draft": DRAFT,
            "router": {"max_sessions": 8, "speculation": {"method": "draft_model"}},
        }
    )
    dotted = copy.deepcopy(PARTS)
    args = dotted["applications"][0]["args"]
    args["applications.draft"] = args["applications"].pop("draft")
    assert read_serve_text(yaml.safe_dump(dotted)).config == served.config
    found = {one.name: one.min_replicas for one in served.placements}
    assert found == {"Router": 2, "Target": 2, "Draft": 1, "Constraint": 1}


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("target.max_num_seqs", 7, {"big"}),
        ("target.max_model_len", 256, {"big", "outrider"}),
        ("target.model_path", str(DEMO / "draft"), {"big", "outrider", "small"}),
        ("draft.max_num_seqs", 7, {"small"}),
        ("router.max_sessions", 7, {"outrider"}),
        ("router.model_name", "mine", {"big", "outrider", "small"}),
        ("link.high_water_mark", 77, {"big", "outrider", "small"}),
    ],
)
def test_a_change_is_made_in_the_applications_that_have_the_key(
    key: str, value: Any, where: set[str]
) -> None:
    served = read(**{key: value})
    before = {one["name"]: one["args"] for one in PARTS["applications"]}
    assert {name for name, args in args_of(served).items() if args != before[name]} == where
    section, name = key.split(".")
    assert getattr(getattr(served.config, section), name) == value


def test_options_of_a_deployment_are_put_into_its_application() -> None:
    actor = {"num_cpus": 0.5}  # of a bundle of `build`, which the file does not give
    served = read(**{"Draft.ray_actor_options": actor, "Constraint.num_replicas": 2})
    first, _, small = served.tree["applications"]
    assert small["deployments"] == [{"name": "Draft", "ray_actor_options": actor}]
    assert {"name": "Constraint", "num_replicas": 2} in first["deployments"]


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        ((0, "target", "max_model_len"), 256, "target: target.max_model_len must be as where"),
        ((0, "target", "model_path"), "other", "target.model_path must be as where the target is"),
        ((2, "target", "model_path"), "other", "draft: target.model_path must be as where"),
        ((2, "link", "high_water_mark"), 7, "draft: link must be the same in all applications"),
        ((1, "model_name"), "b", "target: model_name must be that of router, 'outrider', got 'b'"),
        ((0, "applications", "draft"), "none", "applications.draft: the file has no application"),
        ((0, "applications", "draft"), "", "the file has no application ''"),
        ((0, "applications"), {"target": "big", "drafts.draft": "small"}, "a name must be 1 to 32"),
        (
            (0, "applications"),
            {"target": "big", "x": "small"},
            "x: must be target, draft or drafts",
        ),
        ((0, "applications"), {"target": "big"}, "no router asks the application 'small'"),
        ((0, "applications"), {"target": "small", "draft": "big"}, "serves target"),
        ((0, "draft"), dict(DRAFT), "draft stands here and in applications too, must in one"),
        ((1, "router"), {"max_sessions": 3}, "application big: config: unknown key 'router'"),
        ((2, "drafts", "tiny"), dict(DRAFT), "one draft model has one application, got draft, dra"),
    ],
)
def test_parts_that_do_not_fit_are_refused_by_name(
    place: tuple[Any, ...], value: Any, complaint: str
) -> None:
    tree = copy.deepcopy(PARTS)
    inner = tree["applications"][place[0]]["args"]
    for key in place[1:-1]:
        inner = inner.setdefault(key, {})
    inner[place[-1]] = value
    with pytest.raises(ValueError, match=complaint):
        read_serve_text(yaml.safe_dump(tree))


def test_a_section_is_changed_where_it_is_served() -> None:
    tree = copy.deepcopy(PARTS)
    service = applications_of(tree)
    service.section("target")["max_num_seqs"] = 5
    service.section("router.timeouts")["draft_ms"] = 6
    service.options("Target")["num_replicas"] = 4
    assert tree["applications"][1]["args"]["target"]["max_num_seqs"] == 5
    assert tree["applications"][0]["args"]["router"]["timeouts"] == {"draft_ms": 6}
    assert tree["applications"][1]["deployments"] == [{"name": "Target", "num_replicas": 4}]


def test_a_model_alone_serves_its_draft_where_it_has_one(tmp_path: Path) -> None:
    target = {"target": {"model_path": str(tmp_path)}}
    assert ModelArgs.model_validate(target).section == "target"
    tiny = ModelArgs.model_validate({**target, "drafts": {"tiny": {"model_path": "x"}}})
    assert tiny.section == "drafts.tiny"
    assert list(tiny.models_here) == ["drafts.tiny"]
