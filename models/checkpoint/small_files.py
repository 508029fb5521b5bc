"""Checks a checkpoint's small files for all that a service later reads of them, without torch.

`python -m deployments.config --check`, the application and `LLM` ask here before any weight is
loaded. Routers and engines read the same files by the same functions, so their errors agree.
Weights: `stored_weights.py`, and `stored_shapes.py` where torch is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.files import naming, read_json, unreadable
from models.grammar.compiler import GrammarCompiler, VocabularyInfo
from models.text.tokenizer import Tokenizer
from models.text.vocabulary import read_vocabulary

_NEEDED = ("config.json", "tokenizer.json")


def check_small_files(folder: Path, *, has_grammars: bool) -> None:
    """Read config, generation config, tokenizer and chat template, and hold them to each other.

    Args:
        folder: of a checkpoint.
        has_grammars: whether grammars are compiled for its vocabulary, as for a target's: then a
            token must end a text.

    Raises:
        ValueError: one is missing, cannot be read, or does not fit the others; names the file.
    """
    for name in _NEEDED:
        if not (folder / name).is_file():
            raise ValueError(f"{folder} has no {name}")
    num_columns = read_vocab_size(folder)
    longest_text(folder)
    tokenizer = Tokenizer.load(folder)
    file = folder / "tokenizer.json"
    num_ids = read_vocabulary(file).size
    if num_ids > num_columns:
        raise unreadable(
            file, f"it has {num_ids} token ids, vocab_size of config.json is {num_columns}"
        )
    if beyond := [token_id for token_id in tokenizer.eos_ids if token_id >= num_columns]:
        name = "generation_config.json"
        name = name if (folder / name).is_file() else _NEEDED[0]
        raise unreadable(
            folder / name,
            f"eos_token_id is {beyond[0]}, vocab_size of config.json is {num_columns}",
        )
    if has_grammars:
        _check_grammars(file, tokenizer.eos_ids, num_columns)


def _check_grammars(file: Path, eos_ids: tuple[int, ...], vocab_size: int) -> None:
    if not eos_ids:
        raise ValueError(
            f"{file.parent} names no token that ends a text: neither eos_token_id in "
            "generation_config.json or config.json, nor eos_token in tokenizer_config.json"
        )
    with naming(file):
        text = file.read_text(encoding="utf-8")
        GrammarCompiler(VocabularyInfo(text, vocab_size, eos_ids))


def read_vocab_size(folder: Path) -> int:
    """Columns of the checkpoint's logits, padding included, by its config.json.

    Raises:
        ValueError: the file cannot be read or does not say.
    """
    size = _size(folder, "vocab_size")
    if size is None:
        raise unreadable(folder / "config.json", "it has no vocab_size")
    return size


def longest_text(folder: Path) -> int | None:
    """Tokens that a checkpoint can read at once, by its config.json; None: it does not say.

    Raises:
        ValueError: the file cannot be read.
    """
    return _size(folder, "max_position_embeddings")


def num_layers_of(folder: Path) -> int | None:
    """Layers of a checkpoint, by its config.json; None: it does not say.

    Raises:
        ValueError: the file cannot be read.
    """
    return _size(folder, "num_hidden_layers")


def _size(folder: Path, key: str) -> int | None:
    path = folder / "config.json"
    value = _text_config(folder).get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise unreadable(path, f"{key} must be a whole number above 0, got {value!r:.80}")
    return value


def stored_dtype(folder: Path) -> str | None:
    """Return the type of a checkpoint's weights by its config.json; None if it names none.

    Raises:
        ValueError: the file cannot be read.
    """
    content = _text_config(folder)
    value = content.get("dtype", content.get("torch_dtype"))
    return value if isinstance(value, str) else None


def _text_config(folder: Path) -> dict[str, Any]:
    content = read_json(folder / "config.json")
    nested = content.get("text_config")
    return nested if isinstance(nested, dict) else content
