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


def target(**keys: Any) -> dict[str, Any]:
    return {"target": {"model_path": "x", **keys}}


def draft(**keys: Any) -> dict[str, Any]:
    return {"draft": {"model_path": "x", **keys}}


def speculation(**keys: Any) -> dict[str, Any]:
    return {"router": {"speculation": keys}}


LIMITS_OF_CHILDREN = (
    *("num_children", "max_sessions", "cache_size", "max_schema_bytes", "compile_memory_mb"),
    *("reward_memory_mb", "compile_cpu_s", "compile_timeout_s", "mask_timeout_s", "reward_cpu_s"),
    "reward_timeout_s",
)
# Half of what a frame holds is for the rest.
TOO_MANY_LOGPROBS = MAX_FRAME_BYTES // (2 * MAX_PACKED_BYTES)


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"targett": {}}, "unknown key 'targett'"),
        ({5: 1}, "5"),
        ({"target.model_path": "{x"}, "target.model_path: '{x' cannot be read: expected"),
        (speculation(depth=3), "unknown key 'router.speculation.depth'"),
        (draft(gpus=1), "unknown key 'draft.gpus'"),
        ({"draft": {}}, "missing key 'draft.model_path'"),
        ({"router": {"timeouts": {"token_gap_s": 0}}}, "router.timeouts.token_gap_s: .* greater"),
        *(
            ({"router": {f"{kind}_parser": "xml"}}, rf"router\.{kind}_parser: .*be auto.*got 'xml'")
            for kind in ("tool_call", "reasoning")
        ),
        (
            {"router": {"max_sessions": 5, "reserved_sessions": 3}},
            "reserved_sessions: must be at most 2, half of max_sessions, which is 5, got 3",
        ),
        (
            {"router": {"max_logprob_entries": TOO_MANY_LOGPROBS}},
            "router.max_logprob_entries: .*less than or equal to",
        ),
        *(
            ({section: {key: 10**10}}, rf"{section}\.{key}: .*less than or equal to")
            for section, key in (
                *(("router", "max_sessions"), ("router", "max_queued_sessions")),
                *(("constraint", "max_sessions"), ("constraint", "stall_timeout_s")),
            )
        ),
        *(
            (target(**{key: value}), rf"target\.{key}: .*than or equal to")
            for key, value in (("max_num_seqs", 10**10), ("num_threads", 1025))
        ),
        (target(stall_timeout_s=0.5), "target.stall_timeout_s: .* greater than or equal to 1"),
        # What a model is served with, and by which device.
        (target(tensor_parallel_size=0), "target.tensor_parallel_size"),
        (draft(quantization="int4"), "draft.quantization: .*'int8'"),
        (draft(quantization="fp8"), "draft: .*fp8 runs on cuda only, got device 'cpu'"),
        (
            target(quantization="q4", tensor_parallel_size=2),
            "target: .*q4 needs tensor_parallel_size 1, got 2",
        ),
        (
            target(quantization="int8"),
            "target: .*int8 runs on cuda only, got device 'cpu'; on a CPU q8 keeps weights at 8",
        ),
        (
            target(quantization="q8", device="cuda"),
            "target: .*quantization q8 runs on cpu only, got device 'cuda'",
        ),
        (draft(spare=True), "draft.spare: only a target has one"),
        (
            target(lora_modules={"outrider": "x"}, engine="vllm"),
            r"target\.lora_modules: no name may be that of the model",
        ),
        (
            draft(lora_modules={"a": "x"}, engine="vllm"),
            r"draft\.lora_modules: only a target has adapters",
        ),
        # What drafts in the target.
        (draft(heads="y"), "draft.heads: only a target drafts by heads"),
        (
            target(heads="y", device="cuda"),
            "target: .*heads is served on device cpu only so far, got 'cuda'",
        ),
        (
            target(heads="y", attention="varlen"),
            "target: .*heads is served with attention auto or reference, got 'varlen'",
        ),
        (draft(early_exit=1), "draft.early_exit: only a target drafts by its first layers"),
        (
            target(early_exit=1, device="cuda"),
            "target: .*early_exit is served on device cpu only so far, got 'cuda'",
        ),
        (
            target(early_exit=1, heads="y"),
            "target: .*heads and early_exit both draft in the target: give one of them",
        ),
        # Sizes of a cache.
        (
            target(kv_cache_tokens=4096, kv_cache_memory="1GiB"),
            "kv_cache_tokens and kv_cache_mem",
        ),
        (target(kv_cache_memory="1 gig"), "could not interpret byte unit: gig"),
        (target(kv_cache_memory="0B"), "target.kv_cache_memory: .* greater than 0"),
        (target(gpu_memory_utilization=0.9), "needs device cuda, not cpu"),
        (
            target(gpu_memory_utilization=1.1, device="cuda"),
            "target.gpu_memory_utilization",
        ),
        (target(kv_cache_tokens=None), "give one of kv_cache_tokens and kv_cache_memory and gpu"),
        (target(max_prefill_slowdown=1.0), "target.max_prefill_slowdown: .* greater than 1"),
        # Children of the constraint service.
        *(
            ({"constraint": {name: 0}}, rf"constraint\.{name}: .* greater than")
            for name in LIMITS_OF_CHILDREN
        ),
        ({"constraint": {"memory_limit_mb": 127}}, r"constraint\.memory_limit_mb: .* greater than"),
        (
            {"constraint": {"memory_limit_mb": 256, "compile_memory_mb": 65}},
            "at most a quarter of memory_limit_mb, 256, got 65",
        ),
        # Speculation.
        (speculation(num_speculative_tokens=-1), "num_speculative_tokens"),
        (
            speculation(num_speculative_tokens=9, max_num_speculative_tokens=8),
            r"router\.speculation.*at most .*8.*9",
        ),
        (speculation(method="draft_model"), "method draft_model needs a draft section"),
        (speculation(method="lookup"), "router.speculation.method"),
        (speculation(method="ngram", prompt_lookup_max=0), "prompt_lookup_max of at least 1"),
        (
            speculation(prompt_lookup_min=5),
            "prompt_lookup_min must be at most prompt_lookup_max, 4",
        ),
        (speculation(prompt_lookup_min=0), "router.speculation.prompt_lookup_min"),
        (speculation(verification="typical"), "router.speculation.verification"),
    ],
)
def test_what_cannot_be_is_refused_with_its_path(sections: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        AppConfig.model_validate(target() | sections)


@pytest.mark.parametrize("own", [{"heads": "y"}, {"early_exit": 1}])
def test_what_drafts_in_the_target_may_be_shared_by_ranks(own: dict[str, Any]) -> None:
    config = AppConfig.model_validate(target(tensor_parallel_size=2, **own))
    assert config.target.tensor_parallel_size == 2


def test_all_faults_are_in_one_message() -> None:
    with pytest.raises(ValueError, match=r"'a'.*'b'") as caught:
        AppConfig.model_validate(target() | {"a": 1, "b": 2})
    assert "\n" not in str(caught.value)


def test_requests_outwait_a_target_that_hangs() -> None:
    """It counts as dead before they give up, and another or its spare answers them."""
    assert SessionLimits().queue_wait_s > 1.2 * LeaseConfig().stall_timeout_s


def test_tree_is_frozen() -> None:
    config = AppConfig.model_validate(target())
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


def test_the_config_without_a_draft_has_none_anywhere() -> None:
    content = yaml.safe_load((CONFIGS / "no-draft.yaml").read_text())
    [application] = content["applications"]
    config = AppConfig.model_validate(application["args"])
    assert config.draft is None
    assert config.router.speculation.method == "suffix"
    assert "Draft" not in {deployment["name"] for deployment in application["deployments"]}
