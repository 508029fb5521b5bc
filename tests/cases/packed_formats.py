"""Checkpoint folders of AWQ and GPTQ, packed by their own formulas."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

GROUP_SIZE = 64
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of outputs 0 to 7 in a word

Rounded = tuple[Tensor, Tensor, Tensor]  # codes [I, N], zeros and scales [G, N]


def rounded(weight: Tensor, bits: int, *, is_symmetric: bool) -> Rounded:
    """A weight [N, I] by codes, with one scale and zero for `GROUP_SIZE` inputs."""
    groups = weight.float().T.unflatten(0, (-1, GROUP_SIZE))  # [G, size, N]
    most = 2**bits - 1
    if is_symmetric:
        scales = (groups.abs().amax(1) / (most // 2)).half().float()
        zeros = torch.full_like(scales, 2 ** (bits - 1))
    else:
        low, high = groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)
        scales = ((high - low) / most).half().float()
        zeros = (-low / scales).round().clamp(0, most)
    codes = (groups / scales[:, None] + zeros[:, None]).round().clamp(0, most)
    return codes.flatten(0, 1).int(), zeros.int(), scales.half()


def numbers_of(one: Rounded) -> Tensor:
    """The weight [N, I] that codes stand for."""
    codes, zeros, scales = one
    wide = codes.unflatten(0, (-1, GROUP_SIZE)) - zeros[:, None]
    return (wide * scales.float()[:, None]).flatten(0, 1).T


def _words(codes: Tensor, bits: int, places: tuple[int, ...] | None = None) -> Tensor:
    """[n, m] codes as 32-bit words [n, m * bits / 32]."""
    of_word = codes.long().unflatten(1, (-1, 32 // bits))
    words = torch.zeros(of_word.shape[:2], dtype=torch.int64)
    for number in range(32 // bits):
        place = number if places is None else places[number]
        words |= of_word[:, :, number] << (bits * place)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def awq_tensors(name: str, one: Rounded) -> dict[str, Tensor]:
    """As AutoAWQ stores a layer ("gemm")."""
    codes, zeros, scales = one
    return {
        f"{name}.qweight": _words(codes, 4, _AWQ_PLACES),
        f"{name}.qzeros": _words(zeros, 4, _AWQ_PLACES),
        f"{name}.scales": scales,
    }


def gptq_tensors(name: str, one: Rounded, bits: int = 4) -> dict[str, Tensor]:
    """As AutoGPTQ stores a layer: its zeros are one less."""
    codes, zeros, scales = one
    return {
        f"{name}.qweight": _words(codes.T, bits).T.contiguous(),
        f"{name}.qzeros": _words((zeros - 1) & (2**bits - 1), bits),
        f"{name}.scales": scales,
        f"{name}.g_idx": torch.arange(len(codes), dtype=torch.int32) // GROUP_SIZE,
    }


def publish(
    folder: Path, out: Path, method: str, bits: int = 4, *, is_symmetric: bool = True
) -> dict[str, Tensor]:
    """Write the folder's model with its linear layers rounded, and the output layer whole.

    Args:
        folder: of an ordinary checkpoint.
        out: made.
        method: "awq" or "gptq".
        bits: of a code.
        is_symmetric: zero is in the middle of all codes.

    Returns:
        The numbers of the rounded layers, by their names.
    """
    out.mkdir(parents=True)
    for path in folder.iterdir():
        if path.suffix in (".json", ".jinja"):
            shutil.copy(path, out)
    terms: dict[str, Any] = {"quant_method": method, "bits": bits, "group_size": GROUP_SIZE}
    if method == "awq":
        terms |= {"version": "gemm", "zero_point": True}
    else:
        terms |= {"desc_act": False, "sym": is_symmetric}
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"quantization_config": terms}))
    make: Callable[..., dict[str, Tensor]] = awq_tensors if method == "awq" else gptq_tensors
    options = {} if method == "awq" else {"bits": bits}
    stored, numbers = {}, {}
    for name, weight in AutoModelForCausalLM.from_pretrained(folder).state_dict().items():
        if "_proj.weight" not in name:
            stored[name] = weight.clone()
            continue
        one, layer = rounded(weight, bits, is_symmetric=is_symmetric), name.removesuffix(".weight")
        stored |= make(layer, one, **options)
        numbers[layer] = numbers_of(one)
    save_file(stored, out / "model.safetensors", {"format": "pt"})
    return numbers
