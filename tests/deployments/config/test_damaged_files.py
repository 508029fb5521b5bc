"""Damaged files of a model: the check names each and its reason, and so does who loads it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployments.config.fit import measured
from deployments.config.model_files import check_models, file_faults, resolved
from deployments.config.schema import AppConfig
from deployments.config.sections.models import ModelConfig
from deployments.llm import LLM
from models.checkpoint.loader import load_checkpoint
from models.heads.config import target_heads
from models.heads.folder import stored_weights
from models.text.tokenizer import Tokenizer
from tests.harness.local import DEMO

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
Damage = Callable[[Path], object]


def edit(name: str, **changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / name
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | changes))

    return damage


def cut(name: str, share: float = 0.5) -> Damage:
    def damage(folder: Path) -> None:
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: int(len(whole) * share)])

    return damage


def write(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def rename(name: str, other: str) -> Damage:
    return lambda folder: (folder / name).rename(folder / other)


def indexed(files: dict[str, str], **others: Any) -> Damage:
    """The weights under another name, and an index that gives these files for these tensors."""

    def damage(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
        content = json.dumps({"metadata": {}, "weight_map": files} | others)
        (folder / "model.safetensors.index.json").write_text(content)

    return damage


WORDS, CONFIG, SETTINGS = "tokenizer.json", "config.json", "tokenizer_config.json"
WEIGHTS, GENERATION = "model.safetensors", "generation_config.json"
SMALL: dict[str, tuple[Damage, str]] = {
    "tokenizer-cut": (cut(WORDS), r"tokenizer\.json: EOF"),
    "tokenizer-pointer": (write(WORDS, POINTER), r"tokenizer\.json: it is a git-lfs pointer"),
    "tokenizer-empty": (write(WORDS, b""), r"tokenizer\.json: it is empty"),
    "tokenizer-list": (write(WORDS, b"[]"), r"tokenizer\.json: invalid type"),
    "tokenizer-mark": (write(WORDS, b"\xef\xbb\xbf{}"), r"tokenizer\.json: .* byte order mark"),
    "tokenizer-latin": (write(WORDS, b'{"a": "\xe9"}'), r"tokenizer\.json: 'utf-8' codec"),
    "tokenizer-other": (edit(CONFIG, vocab_size=4000), r"tokenizer\.json: it has 4096 token ids"),
    "tokenizer-elsewhere": (rename(WORDS, "tokenizer.jsn"), r"has no tokenizer\.json"),
    "config-elsewhere": (rename(CONFIG, "config.jsn"), r"has no config\.json"),
    "config-cut": (cut(CONFIG), r"config\.json: no JSON"),
    "config-pointer": (write(CONFIG, POINTER), r"config\.json: it is a git-lfs pointer"),
    "config-null": (write(CONFIG, b"null"), r"config\.json: it holds null, not a JSON object"),
    "config-deep": (write(CONFIG, b"[" * 100_000), r"config\.json: no JSON"),
    "vocab-size": (edit(CONFIG, vocab_size="4096"), r"config\.json: vocab_size .* got '4096'"),
    "no-vocab-size": (edit(CONFIG, vocab_size=None), r"config\.json: it has no vocab_size"),
    "length": (
        edit(CONFIG, max_position_embeddings=0),
        r"config\.json: max_position_embeddings .* got 0",
    ),
    "settings-cut": (cut(SETTINGS), r"tokenizer_config\.json: no JSON"),
    "settings-number": (write(SETTINGS, b"7"), r"tokenizer_config\.json: it holds a number"),
    "eos-token": (edit(SETTINGS, eos_token=3), r"tokenizer_config\.json: eos_token must be a text"),
    "add-bos": (
        edit(SETTINGS, add_bos_token="no"),
        r"tokenizer_config\.json: add_bos_token must be true or false, got 'no'",
    ),
    "template": (
        edit(SETTINGS, chat_template="{% for m in messages %}{{ m.content }}"),
        r"tokenizer_config\.json: its chat template is no Jinja template: .*line 1",
    ),
    "template-file": (
        write("chat_template.jinja", b"{{ messages[0].content }"),
        r"chat_template\.jinja: its chat template is no Jinja template",
    ),
    "template-kind": (edit(SETTINGS, chat_template=[{"name": 1}]), r"chat_template must be a text"),
    "template-silent": (
        edit(SETTINGS, chat_template="<|user|>"),
        r"tokenizer_config\.json: its chat template leaves out what the user says",
    ),
    "template-fails": (
        edit(SETTINGS, chat_template="{{ messages[0].content + 1 }}"),
        r"its chat template fails over a user's turn: TypeError",
    ),
    "template-tools": (
        edit(
            SETTINGS,
            chat_template="{{ messages[-1].content }}{% if tools %}{{ no.no.no }}{% endif %}",
        ),
        r"its chat template fails over a turn with a tool: UndefinedError",
    ),
    "generation-cut": (cut(GENERATION), r"generation_config\.json: no JSON"),
    "generation-eos": (
        edit(GENERATION, eos_token_id="0"),
        r"generation_config\.json: eos_token_id must be a token id or a list of such, got '0'",
    ),
    "generation-beyond": (
        edit(GENERATION, eos_token_id=[0, 5000]),
        r"generation_config\.json: eos_token_id is 5000, vocab_size of config\.json is 4096",
    ),
}
STORED: dict[str, tuple[Damage, str]] = {
    "weights-cut": (cut(WEIGHTS), r"model\.safetensors: no whole safetensors file"),
    "weights-header": (cut(WEIGHTS, 0.0001), r"model\.safetensors: no whole safetensors file"),
    "weights-empty": (write(WEIGHTS, b""), r"model\.safetensors: it is empty"),
    "weights-pointer": (write(WEIGHTS, POINTER), r"model\.safetensors: it is a git-lfs pointer"),
    "weights-renamed": (
        rename(WEIGHTS, "weights.safetensors"),
        r"has neither model\.safetensors nor .*, only weights\.safetensors",
    ),
    "weights-missing": (lambda folder: (folder / WEIGHTS).unlink(), r"has no \*\.safetensors"),
    "shard-missing": (
        indexed({"a": "model-1.safetensors", "b": "model-2.safetensors"}),
        r"lacks 1 of the files that .* names, first model-2\.safetensors",
    ),
    "shard-other": (
        indexed({"no.such.weight": "model-1.safetensors"}),
        r"model-1\.safetensors: it has no no\.such\.weight, which .* looks for in it",
    ),
    "index-without-metadata": (
        indexed({"a": "model-1.safetensors"}, metadata=None),
        r"index\.json: its metadata must be an object",
    ),
    "index-elsewhere": (indexed({"a": "../x"}), r"index\.json: its weight_map must give the name"),
}
SHAPES: dict[str, tuple[Damage, str]] = {
    "wider": (
        edit(CONFIG, intermediate_size=712),
        r"model\.safetensors: \d+ weights have other shapes than config\.json means, first .* 712",
    ),
    "longer": (
        edit(CONFIG, num_hidden_layers=9),
        r"model\.safetensors lacks \d+ weights that config\.json means, first 'model\.layers\.",
    ),
    "kind": (edit(CONFIG, hidden_size="wide"), r"cannot read .*config\.json: .*hidden_size"),
    "activation": (edit(CONFIG, hidden_act="nonsense"), r"cannot read .*config\.json: "),
}


def config_of(folder: Path) -> AppConfig:
    target = {"model_path": str(folder), "max_model_len": 64, "kv_cache_tokens": 64}
    return AppConfig.model_validate({"target": target})


def test_a_whole_folder_is_found_whole(folder: Path) -> None:
    assert file_faults(config_of(folder)) == []
    measured(ModelConfig(model_path=str(folder), max_model_len=64), ())


@pytest.mark.parametrize(("damage", "said"), SMALL.values(), ids=SMALL)
def test_a_damaged_small_file_is_named_with_its_reason(
    folder: Path, damage: Damage, said: str
) -> None:
    damage(folder)
    [fault] = file_faults(config_of(folder))
    with pytest.raises(ValueError, match=said):
        raise fault
    assert "\n" not in str(fault)


@pytest.mark.parametrize(("damage", "said"), STORED.values(), ids=STORED)
def test_damaged_weights_are_named_by_the_check_and_the_engine(
    folder: Path, damage: Damage, said: str
) -> None:
    damage(folder)
    [fault] = file_faults(config_of(folder))
    with pytest.raises(ValueError, match=said):
        raise fault
    sentence = str(fault).removeprefix("target.model_path: ")
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load_checkpoint(ModelConfig(model_path=str(folder), max_model_len=64))


@pytest.mark.parametrize(("damage", "said"), SHAPES.values(), ids=SHAPES)
def test_weights_of_another_model_are_named_by_the_check_and_the_engine(
    folder: Path, damage: Damage, said: str
) -> None:
    damage(folder)
    config = ModelConfig(model_path=str(folder), max_model_len=64)
    with pytest.raises(ValueError, match=said) as checked:
        measured(config, ())
    with pytest.raises(ValueError, match=re.escape(str(checked.value))):
        load_checkpoint(config)


@pytest.mark.parametrize("name", [WEIGHTS, WORDS])
def test_the_python_api_says_what_the_check_says(folder: Path, name: str) -> None:
    (folder / name).write_bytes(POINTER)
    [fault] = file_faults(config_of(folder))
    with pytest.raises(ValueError, match=f"^{re.escape(str(fault))}$"):
        LLM(folder, max_model_len=64, kv_cache_tokens=64)


def test_a_router_says_what_the_check_says(folder: Path) -> None:
    (folder / SETTINGS).write_bytes(POINTER)
    config = resolved(config_of(folder))
    with pytest.raises(ValueError, match="git-lfs") as checked:
        check_models(config)
    sentence = str(checked.value).removeprefix("target.model_path: ")
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        Tokenizer.load(config.router.tokenizer_path)


def test_damaged_heads_are_named(tmp_path: Path) -> None:
    heads = Path(shutil.copytree(DEMO / "heads", tmp_path / "heads"))
    (heads / WEIGHTS).write_bytes(POINTER)
    with pytest.raises(ValueError, match=r"heads/model\.safetensors: it is a git-lfs pointer"):
        stored_weights(heads)
    cut(CONFIG)(heads)
    with pytest.raises(ValueError, match=r"heads/config\.json: no JSON"):
        target_heads(str(heads), None)
