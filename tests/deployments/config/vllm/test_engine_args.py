"""vLLM's engine arguments: each is mapped with its meaning, or refused by key, value and remedy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.config.__main__ import main
from deployments.config.keys import put
from deployments.config.reference import differing
from deployments.config.schema import AppConfig
from deployments.config.serve_file import read_serve_file
from deployments.config.vllm.engine_args import engine_tree
from deployments.config.vllm.words import SERVER_WORDS, WORDS
from loadtest.service.served import free_port
from tests.deployments.config.test_damaged_files import edit
from tests.harness.local import DEMO

TARGET, DRAFT = str(DEMO / "target"), str(DEMO / "draft")
DRAFTED = {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 4}

# By word: vLLM's value, the key that means it here, and its value.
MAPPED: list[tuple[str, Any, str, Any]] = [
    ("model", "org/name", "target.model_path", "org/name"),
    ("model", Path("a/b"), "target.model_path", "a/b"),
    ("revision", "v1", "target.revision", "v1"),
    ("tokenizer", "other", "router.tokenizer_path", "other"),
    ("served_model_name", "mine", "router.model_name", "mine"),
    ("served_model_name", ["mine"], "router.model_name", "mine"),
    ("dtype", "half", "target.dtype", "float16"),
    ("dtype", "float", "target.dtype", "float32"),
    ("dtype", "bfloat16", "target.dtype", "bfloat16"),
    ("device", "cuda", "target.device", "cuda"),
    ("max_model_len", 512, "target.max_model_len", 512),
    ("max_num_seqs", 8, "target.max_num_seqs", 8),
    ("max_num_batched_tokens", 2048, "target.max_num_batched_tokens", 2048),
    ("enable_prefix_caching", False, "target.enable_prefix_caching", False),
    ("block_size", 32, "target.block_size", 32),
    ("tensor_parallel_size", 4, "target.tensor_parallel_size", 4),
    ("gpu_memory_utilization", 0.8, "target.gpu_memory_utilization", 0.8),
    ("kv_cache_memory_bytes", 1 << 30, "target.kv_cache_memory", 1 << 30),
    ("quantization", "fp8", "target.quantization", "fp8"),
    ("enforce_eager", True, "target.graphs", "off"),
    ("enforce_eager", False, "target.graphs", "auto"),
    ("tool_call_parser", "hermes", "router.tool_call_parser", "hermes"),
    ("reasoning_parser", "qwen3", "router.reasoning_parser", "qwen3"),
    ("stream_interval", 4, "router.http.stream_interval", 4),
]


@pytest.mark.parametrize(("word", "value", "key", "meant"), MAPPED)
def test_a_word_is_the_key_that_means_it(word: str, value: Any, key: str, meant: Any) -> None:
    expected: dict[str, Any] = {"target": {}, "draft": None, "router": {}}
    put(expected, key.split("."), meant)
    assert engine_tree({word: value}) == expected


def test_every_word_is_mapped_or_says_what_to_use() -> None:
    mapped = {word for word, *_ in MAPPED} | {"speculative_config", "host", "port"}
    for name, word in {**WORDS, **SERVER_WORDS}.items():
        assert (name in mapped) != bool(word.instead and not word.place), name


@pytest.mark.parametrize("name", [name for name, word in WORDS.items() if not word.place])
def test_a_word_that_means_nothing_here_is_refused_unless_it_asks_for_nothing(name: str) -> None:
    word = WORDS[name]
    if name == "speculative_config":
        return
    for value in (None, *word.nothing):
        assert engine_tree({name: value}) == {"target": {}, "draft": None, "router": {}}
    kinds: dict[str, Any] = {"int": 77, "float": 7.5, "json": {"x": 1}, "text": "odd"}
    for value in (kinds.get(word.kind, True), 1 if word.kind == "bool" else "else"):
        if value in word.nothing and word.kind == "bool":
            continue
        with pytest.raises(ValueError, match=rf"^{name}={value!r}: \w+"):
            engine_tree({name: value})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"trust_remote_code": True}, "trust_remote_code=True: code of a checkpoint is never run"),
        ({"quantization": "awq"}, "quantization='awq': must be int8 or fp8 or q8 or q4"),
        ({"device": "auto"}, "device='auto': name it, cpu or cuda"),
        ({"served_model_name": ["a", "b"]}, "a model has one name here"),
        ({"seed": 0}, "seed=0: .* give `seed` in SamplingParams"),
        ({"pipeline_parallel_size": True}, "pipeline_parallel_size=True"),
        ({"no_such": 1}, "unknown key 'no_such'"),
        (
            {"speculative_config": DRAFTED, "gpu_memory_utilization": 0.9},
            "gpu_memory_utilization=0.9: with a draft model each of both has its own",
        ),
    ],
)
def test_what_is_refused_says_what_to_use(words: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        engine_tree(words)


def test_auto_is_the_type_that_is_stored(folder: Path) -> None:
    assert engine_tree({"dtype": "auto", "model": TARGET})["target"]["dtype"] == "bfloat16"
    for stored, meant in (("float16", "float16"), ("float32", "bfloat16")):
        edit("config.json", dtype=stored)(folder)
        tree = engine_tree({"dtype": "auto", "model": str(folder)})
        assert tree["target"]["dtype"] == meant


def test_a_draft_model_has_what_vllm_gives_it() -> None:
    words = {
        "model": TARGET,
        "dtype": "half",
        "max_num_seqs": 8,
        "max_model_len": 5000,
        "quantization": "int8",
        "enforce_eager": True,
        "tensor_parallel_size": 2,
        "num_threads": 3,
        "speculative_config": DRAFTED,
    }
    assert engine_tree(words)["draft"] == {
        "model_path": DRAFT,
        "dtype": "float16",
        "max_num_seqs": 8,
        "graphs": "off",
        "num_threads": 3,
        "tensor_parallel_size": 2,
        "max_model_len": 2048,  # what the draft model can read
    }


# --- the command ----------------------------------------------------------------------------------


def test_the_command_writes_a_file_that_is_checked_and_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, port = tmp_path / "mine.yaml", free_port()
    words = ["--model", TARGET, "--speculative-config", json.dumps(DRAFTED), "--dtype", "half"]
    words += ["--port", str(port), "--max-num-seqs", "16", "--max-model-len", "1024"]
    words += ["--no-enable-prefix-caching", "--enforce-eager", "--output", str(path), "--check"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "k          4, drafted by draft_model; a request may ask for 0 to 4" in said
    assert f"ok: it can be served here, on 127.0.0.1:{port}" in said
    served = read_serve_file(path)
    assert served.http == ("127.0.0.1", port)
    config = served.config
    assert (config.target.dtype, config.target.graphs) == ("float16", "off")
    assert (config.router.max_sessions, config.target.max_num_seqs) == (16, 20)
    assert config.router.model_name == TARGET
    assert config.draft is not None
    assert not config.draft.enable_prefix_caching
    assert path.read_text().startswith("# Made of vLLM's words; `serve run` takes it.")
    [application] = served.tree["applications"]
    assert differing(AppConfig, application["args"]) == application["args"], "these are defaults"


def test_ranks_get_bundles_and_changes_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", TARGET, "--tensor-parallel-size", "4", "--device", "cuda"]
    assert main([*words, "router.max_sessions=3"]) == 0
    tree = yaml.safe_load(capsys.readouterr().out)
    [application] = tree["applications"]
    AppConfig.model_validate(application["args"])
    assert application["args"]["router"]["max_sessions"] == 3
    assert "deployments" not in application, "a bundle for each rank is what there is anyway"


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--device", "cuda", "--gpu-memory-utilization", "0.7"], "gpu_memory_utilization"),
        (["--kv-cache-memory-bytes", "1000000000"], "kv_cache_memory"),
    ],
)
def test_a_cache_by_memory_is_written_alone(words: list[str], key: str, tmp_path: Path) -> None:
    """A default that says the same in tokens must not stand beside it."""
    path = tmp_path / "mine.yaml"
    assert main(["--model", TARGET, *words, "--output", str(path)]) == 0
    served = read_serve_file(path)
    assert getattr(served.config.target, key) is not None
    assert "kv_cache_tokens" not in path.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", TARGET, "--api-key", "x"], "api_key='x': make a key with"),
        (["--model", TARGET, "--trust-remote-code"], f"--model {TARGET}: trust_remote_code=True"),
        (["--model", TARGET, "--max-num-seqs", "0"], "target.max_num_seqs: "),
        (["--model", TARGET, "--speculative-config", "[]"], r"speculative_config=\[\]: must be"),
    ],
)
def test_the_command_refuses_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    error = capsys.readouterr().err
    assert re.search(said, error)
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "1"], "--port: goes with --model only"),
        (["configs/demo.yaml", "--model", TARGET], "give a file or --model, not both"),
        (["--model", TARGET, "--no-such"], "unrecognized arguments: --no-such"),
        (["--model", TARGET, "--speculative-config", "{"], "must be JSON, got '{'"),
        (
            ["--model", TARGET, "--speculative-config", '{"a": 1, "a": 2}'],
            "a key is given twice: a, a",
        ),
        ([], "give a Serve config file, or --model"),
    ],
)
def test_words_that_are_none_end_with_the_usage(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
