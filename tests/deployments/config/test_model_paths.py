"""What a model_path may name, and what is said where it names nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind

from deployments.config.__main__ import main
from deployments.config.fit import gigabytes
from deployments.config.model_files import file_faults, resolved
from deployments.config.model_paths import resolve_folder, resolve_model
from deployments.config.schema import AppConfig
from loadtest.service.served import free_port
from models.fetch.known import SMOLLM2
from models.gguf.header import read_gguf_header
from tests.cases.gguf_files import write_pair

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def check(capfd: pytest.CaptureFixture[str], config: str, *changes: str) -> tuple[int, str, str]:
    """Exit status, what was said, and the last line of the errors."""
    port = f"http_options.port={free_port()}"
    status = main(["--check", str(CONFIGS / config), port, *changes])
    said, errors = capfd.readouterr()
    return status, said, errors.splitlines()[-1] if errors else ""


def test_a_model_that_is_not_fetched_says_the_command() -> None:
    complaint = r"target\.model_path: smollm2-135m-instruct is not there yet: `python -m models"
    with pytest.raises(ValueError, match=complaint + r"\.fetch smollm2`"):
        resolve_model("smollm2-135m-instruct", "bfloat16", "target.model_path")


def test_a_fetched_model_is_found_by_name() -> None:
    SMOLLM2.folder.mkdir(parents=True)
    (SMOLLM2.folder / "model.safetensors").write_bytes(b"")
    assert resolve_folder("smollm2-135m-instruct", "key") == SMOLLM2.folder
    assert resolve_model("smollm2-135m-instruct", "bfloat16", "key") == SMOLLM2.folder


def test_a_gguf_file_becomes_a_folder_everywhere(tmp_path: Path) -> None:
    file, _ = write_pair(tmp_path, kind=Kind.Q8_0)
    tree = {"target": {"model_path": str(file), "max_model_len": 200, "kv_cache_tokens": 256}}
    config = AppConfig.model_validate(tree)
    assert file_faults(config) == []
    whole = resolved(config)
    folder = Path(whole.target.model_path)
    assert folder.parent.parent == tmp_path / "cache" / "outrider" / "models" / "gguf"
    assert (folder / "model.safetensors").is_file()
    assert whole.router.tokenizer_path == str(folder)


def test_a_damaged_gguf_file_is_a_fault_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF....")
    config = AppConfig.model_validate({"target": {"model_path": str(tmp_path / "x.gguf")}})
    [fault] = file_faults(config)
    assert str(fault).startswith(f"target.model_path: {tmp_path / 'x.gguf'} is ")
    config = AppConfig.model_validate({"target": {"model_path": str(tmp_path / "y.gguf")}})
    assert "target.model_path: no such file: " in str(file_faults(config)[0])


def test_the_check_says_sizes_of_the_file_and_of_the_weights(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, _ = write_pair(tmp_path, kind=Kind.Q8_0)
    changes = (f"target.model_path={file}", "target.max_model_len=200")
    status, said, _ = check(capfd, "no-draft.yaml", *changes)
    assert status == 0
    size = file.stat().st_size / 1e6
    num_parameters = read_gguf_header(file).num_parameters
    assert f"packed as in {file.name}, {size:.1f} MB of Q8_0, F32" in said
    pattern = r"bfloat16; 0\.1 M parameters, (.*) KB of weights per rank \((.*) bits each\)"
    [(weights, bits)] = re.findall(pattern, said)
    assert float(bits) == pytest.approx(8.5, abs=0.2)  # norms are whole
    assert float(weights) == pytest.approx(num_parameters * float(bits) / 8000, rel=0.01)
    status, said, _ = check(capfd, "no-draft.yaml", *changes, "target.attention=reference")
    assert f"dequantised from {file.name}, {size:.1f} MB of Q8_0, F32" in said
    assert f"bfloat16; 0.1 M parameters, {gigabytes(2 * num_parameters)} of weights" in said


def test_the_check_says_in_one_sentence_how_the_model_is_fetched(
    capfd: pytest.CaptureFixture[str],
) -> None:
    status, _, refusal = check(capfd, "smollm2.yaml")
    assert status == 1
    assert "`python -m models.fetch smollm2` fetches it into" in refusal
    assert "demo.yaml" not in refusal
