import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from deployments.config import (
    AppConfig,
    GrammarServiceConfig,
    LinkConfig,
    ModelConfig,
    Section,
    SpeculationConfig,
    TimeoutConfig,
    check_models,
    resolve_folder,
)

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def write_model(folder: Path, *, vocab_size: int = 8, max_len: int = 4096, shift: int = 0) -> str:
    folder.mkdir()
    vocab = {f"t{(index + shift) % vocab_size}": index for index in range(vocab_size)}
    config = {"vocab_size": vocab_size, "max_position_embeddings": max_len}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": vocab}, "added_tokens": [{"content": "<e>", "id": 0}]})
    )
    (folder / "model.safetensors").write_bytes(b"")
    return str(folder)


def tree(tmp_path: Path, **target: Any) -> dict[str, Any]:
    path = write_model(tmp_path / "target")
    return {"target": {"model_path": path, **target}}


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ({"targett": {}}, "unknown key 'targett'"),
        ({"router": {"speculation": {"depth": 3}}}, "unknown key 'router.speculation.depth'"),
        ({"draft": {"model_path": "x", "gpus": 1}}, "unknown key 'draft.gpus'"),
        ({"draft": {}}, "missing key 'draft.model_path'"),
        ({"router": {"timeouts": {"token_gap_s": 0}}}, "router.timeouts.token_gap_s: .* greater"),
        ({"target": {"model_path": "x", "tensor_parallel_size": 0}}, "target.tensor_parallel_size"),
        ({"router": {"speculation": {"num_speculative_tokens": -1}}}, "num_speculative_tokens"),
        ({"draft": {"model_path": "x", "quantization": "int4"}}, "draft.quantization: .*'int8'"),
        (
            {"draft": {"model_path": "x", "quantization": "int8", "device": "cuda"}},
            "draft: .*int8 runs on cpu only, got device 'cuda'",
        ),
        (
            {"target": {"model_path": "x", "quantization": "int8", "tensor_parallel_size": 2}},
            "target: .*int8 needs tensor_parallel_size 1, got 2",
        ),
    ],
    ids=[
        "top",
        "nested",
        "optional-section",
        "missing",
        "range",
        "literal",
        "union",
        "quantization",
        "quantization-device",
        "quantization-ranks",
    ],
)
def test_bad_key_is_refused_with_its_path(
    tmp_path: Path, extra: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        AppConfig.model_validate(tree(tmp_path) | extra)


def test_all_faults_are_in_one_message(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'a'.*'b'") as caught:
        AppConfig.model_validate(tree(tmp_path) | {"a": 1, "b": 2})
    assert "\n" not in str(caught.value)


def test_tree_is_frozen(tmp_path: Path) -> None:
    config = AppConfig.model_validate(tree(tmp_path))
    with pytest.raises(ValueError, match="frozen"):
        config.router.model_name = "other"  # type: ignore[misc]  # that is the point


def test_router_follows_the_target(tmp_path: Path) -> None:
    config = AppConfig.model_validate(tree(tmp_path, max_model_len=1024)).resolved()
    assert config.router.tokenizer_path == config.target.model_path
    assert config.router.max_model_len == 1024
    assert config.draft is None


def test_relative_path_is_found_from_current_folder_then_repo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_folder("configs", "key") == tmp_path / "configs"
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resolve_folder("configs", "key") == CONFIGS
    with pytest.raises(ValueError, match=r"target\.model_path: no such folder: 'nowhere'"):
        resolve_folder("nowhere", "target.model_path")


@pytest.mark.parametrize(
    ("draft", "complaint"),
    [
        ({"vocab_size": 9}, "vocab_size 9 .* differs from 8"),
        ({"shift": 1}, "tokenizer of .* differs .* in 16 entries"),
        ({"max_len": 100}, "draft.max_model_len: 2048 is more than .* 100"),
    ],
    ids=["vocab-size", "tokenizer", "context"],
)
def test_pair_that_does_not_fit_is_refused(
    tmp_path: Path, draft: dict[str, Any], complaint: str
) -> None:
    values = tree(tmp_path)
    values["draft"] = {"model_path": write_model(tmp_path / "draft", **draft)}
    with pytest.raises(ValueError, match=complaint):
        check_models(AppConfig.model_validate(values).resolved())


def test_pair_that_fits_is_accepted(tmp_path: Path) -> None:
    values = tree(tmp_path)
    values["draft"] = {"model_path": write_model(tmp_path / "draft")}
    check_models(AppConfig.model_validate(values).resolved())


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    config = AppConfig.model_validate(tree(tmp_path)).resolved()
    (tmp_path / "target" / missing).unlink()
    with pytest.raises(ValueError, match=rf"target\.model_path: .* has no .*{missing[-11:]}"):
        check_models(config)


def test_one_longest_session_must_fit_in_the_cache(tmp_path: Path) -> None:
    config = AppConfig.model_validate(tree(tmp_path, kv_cache_tokens=1024)).resolved()
    with pytest.raises(ValueError, match=r"target\.kv_cache_tokens: 1024 is less than"):
        check_models(config)


def sections(model: type[Section]) -> list[type[Section]]:
    found = [model]
    for field in model.model_fields.values():
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(part, type) and issubclass(part, Section):
                found += sections(part)
    return found


def test_every_leaf_is_described() -> None:
    for section in sections(AppConfig):
        for name, field in section.model_fields.items():
            is_section = isinstance(field.annotation, type) and issubclass(
                field.annotation, Section
            )
            assert field.description or is_section, f"{section.__name__}.{name}"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_config_is_valid_for_serve_and_for_us(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    schema = ServeDeploySchema.model_validate(content)
    for application in schema.applications:
        config = AppConfig.model_validate(application.args)
        assert config.router.model_name
        names = {deployment.name for deployment in application.deployments}
        assert names <= {"Router", "Target", "Draft", "Constraint"}


def test_a_fixed_k_above_the_limit_is_refused() -> None:
    speculation = {"num_speculative_tokens": 9, "max_num_speculative_tokens": 8}
    tree = {"target": {"model_path": "x"}, "router": {"speculation": speculation}}
    with pytest.raises(ValueError, match=r"router\.speculation.*at most .*8.*9"):
        AppConfig.model_validate(tree)


@pytest.mark.parametrize(
    ("speculation", "complaint"),
    [
        ({"method": "draft_model"}, "method draft_model needs a draft section"),
        ({"method": "lookup"}, "router.speculation.method"),
        ({"method": "ngram", "prompt_lookup_max": 0}, "prompt_lookup_max of at least 1"),
        ({"prompt_lookup_min": 5}, "prompt_lookup_min must be at most prompt_lookup_max, 4"),
        ({"prompt_lookup_min": 0}, "router.speculation.prompt_lookup_min"),
        ({"verification": "typical"}, "router.speculation.verification"),
    ],
    ids=["no-draft", "unknown", "off", "crossed", "zero", "rule"],
)
def test_speculation_that_cannot_be_is_refused(speculation: dict[str, Any], complaint: str) -> None:
    tree = {"target": {"model_path": "x"}, "router": {"speculation": speculation}}
    with pytest.raises(ValueError, match=complaint):
        AppConfig.model_validate(tree)


@pytest.mark.parametrize("name", ["demo.yaml", "no-draft.yaml"])
def test_a_config_to_start_from_spells_out_every_key(name: str) -> None:
    """Each with a comment: what is left to a default is not found by who looks for it."""
    text = (CONFIGS / name).read_text()
    [application] = yaml.safe_load(text)["applications"]
    args = application["args"]
    router = args["router"]
    for section, model in [
        (args["target"], ModelConfig),
        (args["constraint"], GrammarServiceConfig),
        (args["link"], LinkConfig),
        (router["speculation"], SpeculationConfig),
        (router["timeouts"], TimeoutConfig),
    ]:
        assert set(section) == set(model.model_fields)
        for key in section:
            assert re.search(rf"^ *{key}: .* #", text, re.MULTILINE), key


def test_the_config_without_a_draft_has_none_anywhere() -> None:
    content = yaml.safe_load((CONFIGS / "no-draft.yaml").read_text())
    [application] = content["applications"]
    config = AppConfig.model_validate(application["args"])
    assert config.draft is None
    assert config.router.speculation.method == "ngram"
    assert "Draft" not in {deployment["name"] for deployment in application["deployments"]}
