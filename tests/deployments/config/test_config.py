from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from deployments.config.applications import IMPORT_PATH, MODEL_IMPORT_PATH
from deployments.config.model_files import check_models, resolved
from deployments.config.model_paths import resolve_folder
from deployments.config.reference import differing
from deployments.config.schema import AppConfig
from deployments.config.sections.models import LeaseConfig, ModelArgs, Models
from deployments.config.serve_file import read_serve_file
from deployments.link.frames import MAX_FRAME_BYTES
from models.config import Section
from models.protocol.packed_logprobs import MAX_PACKED_BYTES
from router.limits import SessionLimits
from tests.cases.model_folders import tree

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


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
            {"draft": {"model_path": "x", "quantization": "fp8"}},
            "draft: .*fp8 runs on cuda only, got device 'cpu'",
        ),
        (
            {"target": {"model_path": "x"}, "draft": {"model_path": "x", "heads": "y"}},
            "draft.heads: only a target drafts by heads",
        ),
        (
            {"target": {"model_path": "x", "heads": "y", "device": "cuda"}},
            "target: .*heads is served on device cpu only so far, got 'cuda'",
        ),
        (
            {"target": {"model_path": "x", "heads": "y", "attention": "varlen"}},
            "target: .*heads is served with attention auto or reference, got 'varlen'",
        ),
        (
            {"target": {"model_path": "x"}, "draft": {"model_path": "x", "early_exit": 1}},
            "draft.early_exit: only a target drafts by its first layers",
        ),
        (
            {"target": {"model_path": "x", "early_exit": 1, "device": "cuda"}},
            "target: .*early_exit is served on device cpu only so far, got 'cuda'",
        ),
        (
            {"target": {"model_path": "x", "early_exit": 1, "heads": "y"}},
            "target: .*heads and early_exit both draft in the target: give one of them",
        ),
        (
            {"target": {"model_path": "x", "quantization": "q4", "tensor_parallel_size": 2}},
            "target: .*q4 needs tensor_parallel_size 1, got 2",
        ),
        (
            {"target": {"model_path": "x", "quantization": "int8"}},
            "target: .*int8 runs on cuda only, got device 'cpu'; on a CPU q8 keeps weights at 8",
        ),
        (
            {"target": {"model_path": "x", "quantization": "q8", "device": "cuda"}},
            "target: .*quantization q8 runs on cpu only, got device 'cuda'",
        ),
        (
            {"target": {"model_path": "x"}, "draft": {"model_path": "x", "spare": True}},
            "draft.spare: only a target has one",
        ),
        (
            {"router": {"max_sessions": 5, "reserved_sessions": 3}},
            "reserved_sessions: must be at most 2, half of max_sessions, which is 5, got 3",
        ),
    ],
)
def test_bad_key_is_refused_with_its_path(
    tmp_path: Path, extra: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        AppConfig.model_validate(tree(tmp_path) | extra)


@pytest.mark.parametrize("own", [{"heads": "y"}, {"early_exit": 1}])
def test_what_drafts_in_the_target_may_be_shared_by_ranks(
    tmp_path: Path, own: dict[str, Any]
) -> None:
    target = {"model_path": "x", "tensor_parallel_size": 2, **own}
    config = AppConfig.model_validate(tree(tmp_path) | {"target": target})
    assert config.target.tensor_parallel_size == 2


@pytest.mark.parametrize("key", ["tool_call_parser", "reasoning_parser"])
def test_a_parser_that_is_not_there_is_refused_with_its_path(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match=rf"router\.{key}: .*must be auto.*got 'xml'"):
        AppConfig.model_validate(tree(tmp_path) | {"router": {key: "xml"}})


def test_a_value_that_is_no_yaml_is_refused_by_its_key() -> None:
    with pytest.raises(ValueError, match=r"target.model_path: '{x' cannot be read: expected"):
        AppConfig.model_validate({"target.model_path": "{x"})


def test_a_key_that_is_no_text_is_refused_as_one() -> None:
    with pytest.raises(ValueError, match="5"):
        AppConfig.model_validate({5: 1, "target": {"model_path": "x"}})


def test_all_faults_are_in_one_message(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'a'.*'b'") as caught:
        AppConfig.model_validate(tree(tmp_path) | {"a": 1, "b": 2})
    assert "\n" not in str(caught.value)


def test_requests_outwait_a_target_that_hangs() -> None:
    """It counts as dead before they give up, and another or its spare answers them."""
    assert SessionLimits().queue_wait_s > 1.2 * LeaseConfig().stall_timeout_s


def test_tree_is_frozen(tmp_path: Path) -> None:
    config = AppConfig.model_validate(tree(tmp_path))
    with pytest.raises(ValueError, match="frozen"):
        config.router.model_name = "other"  # type: ignore[misc]  # that is the point


def test_router_follows_the_target(tmp_path: Path) -> None:
    config = resolved(AppConfig.model_validate(tree(tmp_path, max_model_len=1024)))
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


def test_the_cache_counts_in_whole_blocks(tmp_path: Path) -> None:
    config = AppConfig.model_validate(tree(tmp_path, kv_cache_tokens=2050, max_model_len=2049))
    complaint = r"2050 \(2048 in whole blocks\) is less than max_model_len, 2049"
    with pytest.raises(ValueError, match=complaint):
        check_models(resolved(config))


@pytest.mark.parametrize(
    ("written", "num_bytes"),
    [("2GiB", 2 << 30), ("512 MiB", 512 << 20), ("1.5GB", 1_500_000_000), (4096, 4096)],
)
def test_kv_memory_is_written_as_people_write_it(
    tmp_path: Path, written: object, num_bytes: int
) -> None:
    config = AppConfig.model_validate(tree(tmp_path, kv_cache_memory=written))
    assert config.target.kv_cache_memory == num_bytes
    check_models(resolved(config))


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"kv_cache_tokens": 4096, "kv_cache_memory": "1GiB"}, "kv_cache_tokens and kv_cache_mem"),
        (
            {"kv_cache_memory": "1 gig"},
            "could not interpret byte unit: gig",
        ),
        ({"kv_cache_memory": "0B"}, "target.kv_cache_memory: .* greater than 0"),
        ({"gpu_memory_utilization": 0.9}, "needs device cuda, not cpu"),
        ({"gpu_memory_utilization": 1.1, "device": "cuda"}, "target.gpu_memory_utilization"),
        ({"kv_cache_tokens": None}, "give one of kv_cache_tokens and kv_cache_memory and gpu"),
        ({"max_prefill_slowdown": 1.0}, "target.max_prefill_slowdown: .* greater than 1"),
    ],
)
def test_cache_sizes_that_cannot_be_are_refused(
    tmp_path: Path, keys: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        AppConfig.model_validate(tree(tmp_path, **keys))


@pytest.mark.parametrize(
    "limit",
    [
        *({name: 0} for name in ("num_children", "max_sessions", "cache_size", "max_schema_bytes")),
        *({name: 0} for name in ("compile_memory_mb", "reward_memory_mb")),
        *({name: 0.0} for name in ("compile_cpu_s", "compile_timeout_s", "mask_timeout_s")),
        *({name: 0.0} for name in ("reward_cpu_s", "reward_timeout_s")),
        {"memory_limit_mb": 127},
    ],
    ids=lambda limit: next(iter(limit)),
)
def test_limits_of_a_child_out_of_range_are_refused(tmp_path: Path, limit: dict[str, Any]) -> None:
    (name,) = limit
    with pytest.raises(ValueError, match=rf"constraint\.{name}: .* greater than"):
        AppConfig.model_validate(tree(tmp_path) | {"constraint": limit})


def test_one_compile_must_fit_into_a_child(tmp_path: Path) -> None:
    limits = {"memory_limit_mb": 256, "compile_memory_mb": 65}
    with pytest.raises(ValueError, match="at most a quarter of memory_limit_mb, 256, got 65"):
        AppConfig.model_validate(tree(tmp_path) | {"constraint": limits})


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
    read = read_serve_file(path)
    assert read.config.router.model_name
    names = {placement.name for placement in read.placements}
    for application in schema.applications:
        trees: dict[str, type[Models]] = {IMPORT_PATH: AppConfig, MODEL_IMPORT_PATH: ModelArgs}
        tree = trees[application.import_path]
        assert differing(tree, application.args) == application.args, "these are defaults"
        assert {deployment.name for deployment in application.deployments} <= names


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


def test_no_allowed_number_of_logprobs_makes_a_frame_too_long() -> None:
    limit = MAX_FRAME_BYTES // (2 * MAX_PACKED_BYTES)  # and half of it for the rest
    tree = {"target": {"model_path": "x"}, "router": {"max_logprob_entries": limit}}
    with pytest.raises(ValueError, match=r"router.max_logprob_entries: .*less than or equal to"):
        AppConfig.model_validate(tree)


def test_the_config_without_a_draft_has_none_anywhere() -> None:
    content = yaml.safe_load((CONFIGS / "no-draft.yaml").read_text())
    [application] = content["applications"]
    config = AppConfig.model_validate(application["args"])
    assert config.draft is None
    assert config.router.speculation.method == "suffix"
    assert "Draft" not in {deployment["name"] for deployment in application["deployments"]}
