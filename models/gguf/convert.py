"""`python -m models.gguf.convert FILE FOLDER`: a GGUF file becomes a checkpoint folder.

Every weight is dequantised to one type, or stays packed (`models/gguf/packed.py`). transformers
reads configuration and tokenizer, from the first part of a file in parts. A file with tensors that
its model would leave out is refused. The tokenizer's settings become a tokenizer.json, so that
routers need nothing but that. Imports torch: services call it as a process of its own
(`models/gguf/folder.py`). Convert once for a cluster, into a folder that all nodes see.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from models.cache import make_once, refuse_full_disk
from models.config import DTYPE_NAMES
from models.gguf.folder import PACKED, SOURCE_NAME
from models.gguf.header import ROPE_TABLE, GgufHeader, GgufTensor, read_gguf_header
from models.gguf.names import name_in_transformers
from models.gguf.packed import holds_groups, num_packed_bytes, packed_tensors, whole_tensor
from models.packed_form import GROUP, METHOD

_WEIGHTS_NAME = "model.safetensors"
_MODE = 0o644
_SPARE_BYTES = 100_000_000  # tokenizer and configuration, and what others write meanwhile
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# Names in files for the ways in which byte-level tokenizers cut a text before they merge. These are
# the ones of llama.cpp that transformers builds as they are; a wrong cut gives other ids silently.
_GPT2_CUT = ("gpt-2",)
_DIGITS_CUT = ("smollm",)  # each digit alone, then as GPT-2; made here
_KNOWN_CUTS = ("llama-bpe", "llama3", "llama-v3", "qwen2", "deepseek-r1-qwen", "tekken")
# The same in every Llama 3.1, 3.2 and 3.3; the factor is the file's.
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "tekken")  # a token is taken before its merges


def convert(path: Path, folder: Path, dtype: str) -> None:
    """Write the checkpoint of a GGUF file into an existing, empty folder.

    Args:
        path: the file, or any of its parts.
        folder: takes config.json, model.safetensors, tokenizer.json and the like.
        dtype: of the weights: "float32", "bfloat16", "float16" or `PACKED`.

    Raises:
        ValueError: the file is refused (see `read_gguf_header`), transformers cannot read it or
            would leave a part of it out, or the disk has no room.
    """
    header = read_gguf_header(path)
    _refuse_unknown_cut(header)
    is_packed = dtype == PACKED
    if is_packed and not holds_groups(header):
        raise ValueError(f"{path} has no weights of few bits that could stay packed")
    weights = num_packed_bytes(header) if is_packed else header.num_parameters * _ITEM_BYTES[dtype]
    refuse_full_disk(folder, weights + _SPARE_BYTES)
    try:
        _write_model(header, folder, dtype)
        _load_tokenizer(header).save_pretrained(folder)
    except MemoryError:
        raise
    except Exception as error:  # a setting of another kind raises anything in transformers
        raise ValueError(f"{path} cannot be converted: {error}") from error
    source = {
        "file": path.name,
        "file_bytes": header.num_bytes,
        "tensor_types": header.type_names,
        "num_parameters": header.num_parameters,
        "dtype": dtype,
    }
    (folder / SOURCE_NAME).write_text(json.dumps(source, indent=1) + "\n", encoding="utf-8")


def _read_config(header: GgufHeader) -> Any:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(header.path.parent), gguf_file=header.path.name)
    _set_rope(header, config)
    return config


def _write_model(header: GgufHeader, folder: Path, dtype: str) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, GenerationConfig

    config = _read_config(header)
    tensors = {
        name_in_transformers(tensor.name): tensor
        for tensor in header.tensors
        if tensor.name != ROPE_TABLE
    }
    config.tie_word_embeddings = "lm_head.weight" not in tensors
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    _refuse_other_weights(tensors, {name: one.shape for name, one in model.named_parameters()})
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if dtype == PACKED:
            parts = packed_tensors(header, tensor)
            stored |= {key: torch.from_numpy(part) for key, part in parts.items()}
        else:
            numbers = torch.from_numpy(whole_tensor(header, tensor))
            stored[name] = numbers.to(getattr(torch, dtype))
    save_file(stored, folder / _WEIGHTS_NAME, {"format": "pt"})
    (folder / _WEIGHTS_NAME).chmod(_MODE)  # it is the writer's own otherwise
    config.architectures = [type(model).__name__]
    if dtype == PACKED:
        config.quantization_config = {"quant_method": METHOD, "group_size": GROUP}
    else:
        config.dtype = getattr(torch, dtype)
    config.save_pretrained(folder)
    generation = GenerationConfig.from_model_config(config)
    generation.eos_token_id = _end_ids(header)
    generation.save_pretrained(folder)


def _refuse_other_weights(
    tensors: Mapping[str, GgufTensor], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Hold the file's weights against those of the model that its settings mean, by their shapes.

    Raises:
        ValueError: one is missing, of another shape or none of the model's.
    """
    if missing := sorted(expected.keys() - tensors.keys()):
        raise ValueError(f"it lacks {len(missing)} weights, first {missing[0]!r}")
    for name, tensor in tensors.items():
        if name not in expected:
            raise ValueError(f"its model has no {name}: a part of it would be left out")
        found, wanted = list(tensor.shape[::-1]), list(expected[name])  # a file has inputs first
        if found != wanted:
            raise ValueError(f"{name} has the shape {found}, its settings mean {wanted}")


def _end_ids(header: GgufHeader) -> list[int]:
    """Return the ids that end a text or a turn."""
    found = [header.settings.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return list(dict.fromkeys(one for one in found if one is not None))


def _set_rope(header: GgufHeader, config: Any) -> None:
    """Set the rope parameters of Llama 3.1 and later, whose file has only the divisors.

    Raises:
        ValueError: the file's divisors are not those of Llama 3's rule.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    table = header.rope_table()
    if table is None:
        return
    theta = config.rope_parameters["rope_theta"]
    config.rope_parameters = {"rope_theta": theta, **_LLAMA3_ROPE, "factor": float(table.max())}
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device="cpu")
    num = len(frequencies)
    expected = theta ** -(np.arange(num) / num) / frequencies.numpy()
    if table.shape != expected.shape or not np.allclose(table, expected, rtol=1e-3):
        raise ValueError(
            "its rotary frequencies (rope_freqs.weight) are not scaled as Llama 3's are, and no "
            "other way is known"
        )


def _load_tokenizer(header: GgufHeader) -> Any:
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(
        str(header.path.parent), gguf_file=header.path.name
    )
    settings = header.settings
    cut = settings.get("tokenizer.ggml.pre")
    if cut in _DIGITS_CUT:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    is_of_pieces = settings.get("tokenizer.ggml.model") == "llama"
    if is_of_pieces and settings.get("tokenizer.ggml.add_space_prefix") is False:
        pieces = tokenizer.backend_tokenizer
        pieces.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        spaces = decoders.Replace(pieces.pre_tokenizer.replacement, " ")
        pieces.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse()])
    if cut in _WHOLE_WORDS:
        tokenizer.backend_tokenizer.model.ignore_merges = True
    return tokenizer


def _refuse_unknown_cut(header: GgufHeader) -> None:
    cut = header.settings.get("tokenizer.ggml.pre")
    known = (*_GPT2_CUT, *_DIGITS_CUT, *_KNOWN_CUTS)
    if header.settings.get("tokenizer.ggml.model") == "gpt2" and cut not in known:
        raise ValueError(
            f"{header.path}: its tokenizer cuts text by rules called {cut!r}; known are "
            f"{', '.join(known)}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status; an error is one line on stdout.

    Returns the exit status; what was wrong is one line on stdout.
    """
    parser = argparse.ArgumentParser(
        prog="python -m models.gguf.convert",
        description="Convert a GGUF file to a checkpoint folder.",
    )
    parser.add_argument("file", type=Path, help="a .gguf file")
    parser.add_argument("folder", type=Path, help="made, unless it is there already")
    parser.add_argument(
        "--dtype",
        choices=(*DTYPE_NAMES, PACKED),
        default="bfloat16",
        help="of the weights; packed: as the file has them, for our own engine on a CPU",
    )
    options = parser.parse_args(argv)
    os.environ["HF_HUB_OFFLINE"] = "1"  # all it needs is in the file
    try:
        make_once(
            options.folder.absolute(),
            partial(convert, options.file.absolute(), dtype=options.dtype),
        )
    except ValueError as error:
        sys.stdout.write(f"{' '.join(str(error).split())}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
