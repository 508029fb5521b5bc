"""Holds what a checkpoint's files store against what its config means, before weights are read.

transformers' own loader decides which stored tensor becomes which weight. It takes tensors without
storage, made of the files' headers. So a model of any size is checked against its files in a
second. The result is the same as when it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, GenerationConfig
from transformers.utils import logging as transformers_logging

from models.checkpoint.float8 import unscaled
from models.checkpoint.packed_shapes import as_packed, whole_shapes
from models.checkpoint.stored_weights import stored_tensors, weight_files
from models.config import EngineConfig
from models.files import naming
from models.layers.shapes import shapes_of

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}


def check_stored_shapes(config: EngineConfig) -> None:
    """Check that a checkpoint's files hold the weights that its config means.

    Args:
        config: whose `model_path` is a folder with weights.

    Raises:
        ValueError: its config makes no model, or the files lack a weight of it or have one of
            another shape; names file and weight.
    """
    folder, dtype = Path(as_packed(config).model_path), getattr(torch, config.dtype)
    file = folder / "config.json"
    with naming(file):
        hf_config = unscaled(AutoConfig.from_pretrained(folder, trust_remote_code=False))
        kind = type(shapes_of(hf_config, dtype))
    generation = folder / "generation_config.json"
    if generation.is_file():
        with quiet(), naming(generation):
            GenerationConfig.from_pretrained(folder)
    found = {
        name: (shape, _DTYPES.get(stored_as, torch.uint8))
        for path in weight_files(folder)
        for name, shape, stored_as in stored_tensors(path)
    }
    whole = whole_shapes({name: shape for name, (shape, _) in found.items()})
    stored = {
        name: torch.empty(shape, dtype=found.get(name, (shape, dtype))[1], device="meta")
        for name, shape in whole.items()
    }
    with quiet(), naming(file):
        loaded: Any = kind.from_pretrained(
            None,
            config=hf_config,
            state_dict=stored,
            dtype=dtype,
            device_map={"": "meta"},
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    refuse_unfitting(folder, loaded[1])


def refuse_unfitting(folder: Path, info: Mapping[str, Any]) -> None:
    """Check what transformers tells of a load.

    Args:
        folder: of the checkpoint.
        info: `missing_keys` and `mismatched_keys`, as `output_loading_info` has them.

    Raises:
        ValueError: a weight is missing or has another shape.
    """
    if missing := sorted(info["missing_keys"]):
        raise ValueError(
            f"{_files(folder)} lacks {len(missing)} weights that config.json means, "
            f"first {missing[0]!r}"
        )
    if others := sorted(info["mismatched_keys"]):
        name, found, wanted = others[0]
        raise ValueError(
            f"{_files(folder)}: {len(others)} weights have other shapes than config.json means, "
            f"first {name!r}: {list(found)}, not {list(wanted)}"
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Have transformers say nothing meanwhile: what it warns of is raised here, or is no fault."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)


def _files(folder: Path) -> str:
    files = weight_files(folder)
    return str(files[0]) if len(files) == 1 else f"{folder}: {files[0].name} to {files[-1].name}"
