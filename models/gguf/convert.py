"""`python -m models.gguf.convert FILE FOLDER`: a GGUF file becomes an ordinary checkpoint folder.

transformers reads the file and dequantises every weight to one type; what it would leave out
silently is refused here. A file in parts is joined first. The tokenizer's settings become a
tokenizer.json, so that routers need nothing but that. Imports torch: services call it as a process
of its own (`models/gguf/folder.py`). Convert once for a cluster, into a folder that all nodes see.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from models.cache import make_once, refuse_full_disk
from models.config import DTYPE_NAMES
from models.gguf.folder import SOURCE_NAME
from models.gguf.header import GgufHeader, read_gguf_header
from models.gguf.join import join

_JOINED = "joined.gguf"  # while it is read
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
        dtype: of the weights: "float32", "bfloat16" or "float16".

    Raises:
        ValueError: the file is refused (see `read_gguf_header`), transformers cannot read it or
            would leave a part of it out, or the disk has no room.
    """
    header = read_gguf_header(path)
    _refuse_unknown_cut(header)
    joined = folder / _JOINED if len(header.parts) > 1 else None
    taken = 0 if joined is None else header.num_bytes
    refuse_full_disk(folder, header.num_parameters * _ITEM_BYTES[dtype] + taken + _SPARE_BYTES)
    try:
        if joined is not None:
            join(header, joined)
            header = replace(header, path=joined)
        model = _load(header, dtype)
        tokenizer = _load_tokenizer(header)
    # A file that cannot be read; an architecture or a setting that transformers refuses; a shape
    # that does not fit or a block type without code; something that it looks up in vain.
    except (OSError, ValueError, RuntimeError, LookupError) as error:
        raise ValueError(f"{path} cannot be read by transformers: {error}") from error
    if joined is not None:
        joined.unlink()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    source = {
        "file": path.name,
        "file_bytes": header.num_bytes,
        "tensor_types": header.type_names,
        "num_parameters": header.num_parameters,
        "dtype": dtype,
    }
    (folder / SOURCE_NAME).write_text(json.dumps(source, indent=1) + "\n", encoding="utf-8")


def _load(header: GgufHeader, dtype: str) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig

    config = AutoConfig.from_pretrained(str(header.path.parent), gguf_file=header.path.name)
    _set_rope(header, config)
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        str(header.path.parent),
        config=config,
        gguf_file=header.path.name,
        quantization_config=GgufConfig(gguf_file=header.path.name, dequantize=True),
        dtype=getattr(torch, dtype),
        output_loading_info=True,
    )
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"it lacks {len(missing)} weights, first {missing[0]!r}")
    num_read = sum(weight.numel() for weight in model.parameters())
    if num_read != header.num_parameters:
        raise ValueError(
            f"its tensors hold {header.num_parameters} numbers, the model made of them "
            f"{num_read}: a part of it would be left out"
        )
    model.to(getattr(torch, dtype))
    for settings in (model.config, model.generation_config):
        if hasattr(settings, "quantization_config"):
            del settings.quantization_config
    end_ids = [header.settings.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    model.generation_config.eos_token_id = list(
        dict.fromkeys(token_id for token_id in end_ids if token_id is not None)
    )
    return model


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
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(
        str(header.path.parent), gguf_file=header.path.name
    )
    cut = header.settings.get("tokenizer.ggml.pre")
    if cut in _DIGITS_CUT:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
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
        description="Convert a GGUF file to a checkpoint folder, its weights dequantised.",
    )
    parser.add_argument("file", type=Path, help="a .gguf file")
    parser.add_argument("folder", type=Path, help="made, unless it is there already")
    parser.add_argument("--dtype", choices=DTYPE_NAMES, default="bfloat16", help="of the weights")
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
