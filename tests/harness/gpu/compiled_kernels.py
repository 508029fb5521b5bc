"""Compiles every kernel for GPUs that are not here, and prints what it takes of their registers.

    python -m tests.harness.gpu.compiled_kernels

Run in a process of its own: where TRITON_INTERPRET is set kernels cannot be compiled.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from models.gpu.kernels import attention, gate, norm, product, rotary, rounding
from models.sampling.kernels import cut, draw

ARCHITECTURES = (80, 89, 90, 100)  # A100, L4 and RTX 40, H100, B200
_LEAST_FOR_FP8 = 89
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
_BF16, _F32, _I8, _I32, _I64 = "*bf16", "*fp32", "*i8", "*i32", "*i64"
# Rows, weight, scales, bias, result, parts; sizes.
_PRODUCT = [_BF16] * 5 + [_F32, "i32", "i32", "i32", "i32", "i32"]
_ATTENTION = [_BF16] * 3 + [_I32] * 3 + [_BF16] + [_F32] * 4 + ["i32"] * 8 + ["fp32"]


def _heads(group: int, *, is_parted: bool) -> dict[str, object]:
    """Fixed sizes of attention with so many query heads a key head."""
    rows, height = attention.tile_sizes(group)
    return {
        "GROUP": group,
        "ROWS": rows,
        "TILE": height,
        "HEAD": 128,
        "BLOCK": 128,
        "BLOCK_KEYS": attention.BLOCK_KEYS,
        "PART_KEYS": attention.PART_KEYS,
        "IS_PARTED": is_parted,
        "WITH_LOG_SUMS": not is_parted,
    }


_TILES: dict[str, object] = {
    "BLOCK_ROWS": product.BLOCK_ROWS,
    "BLOCK_OUTPUTS": product.BLOCK_OUTPUTS,
    "BLOCK_INPUTS": product.BLOCK_INPUTS,
}
# Each with its arguments in order, its fixed sizes, and its warps: those of an 8B model.
_KERNELS: dict[str, tuple[Any, list[str], dict[str, object], int]] = {
    "rms_norm": (
        norm.rms_norm_kernel,
        [_BF16, _BF16, _BF16, "i32", "fp32"],
        {"BLOCK": 4096},
        norm.warps_of(4096),
    ),
    "add_rms_norm": (
        norm.add_rms_norm_kernel,
        [_BF16] * 5 + ["i32", "fp32"],
        {"BLOCK": 8192},
        norm.warps_of(8192),
    ),
    "place": (
        rotary.place_kernel,
        [_BF16] * 3 + [_I64] * 2 + [_BF16] * 4 + ["i32", "i32", "fp32"],
        {"HEAD": 128, "BLOCK": 128, "IS_NORMED": True},
        1,
    ),
    "attention": (attention.attention_kernel, _ATTENTION, _heads(4, is_parted=False), 4),
    "attention of 8 heads": (
        attention.attention_kernel,
        _ATTENTION,
        _heads(8, is_parted=False),
        attention.warps_of(64),
    ),
    "attention in parts": (attention.attention_kernel, _ATTENTION, _heads(4, is_parted=True), 4),
    "join": (
        attention.join_kernel,
        [_F32] * 3 + [_I32] * 2 + [_BF16, _F32] + ["i32"] * 4,
        {"HEAD": 128, "BLOCK": 128, "PART_KEYS": attention.PART_KEYS, "WITH_LOG_SUMS": True},
        1,
    ),
    "gate": (gate.gate_kernel, [_BF16, _BF16, "i32"], {"BLOCK": 1024}, 4),
    "round": (
        rounding.round_kernel,
        [_BF16, "*fp8e4nv", _F32, "i32", "fp32", "fp32"],
        {"BLOCK": 32768},
        norm.warps_of(32768),
    ),
    "product": (
        product.product_kernel,
        _PRODUCT,
        {"HAS_SCALES": False, "HAS_BIAS": True, "IS_PARTED": False, **_TILES},
        product.NUM_WARPS,
    ),
    "product in parts": (
        product.product_kernel,
        _PRODUCT,
        {"HAS_SCALES": False, "HAS_BIAS": True, "IS_PARTED": True, **_TILES},
        product.NUM_WARPS,
    ),
    "product of int8": (
        product.product_kernel,
        [_BF16, _I8, *_PRODUCT[2:]],
        {"HAS_SCALES": True, "HAS_BIAS": True, "IS_PARTED": False, **_TILES},
        product.NUM_WARPS,
    ),
    "product of int8 in parts": (
        product.product_kernel,
        [_BF16, _I8, *_PRODUCT[2:]],
        {"HAS_SCALES": True, "HAS_BIAS": True, "IS_PARTED": True, **_TILES},
        product.NUM_WARPS,
    ),
    "sum": (
        product.sum_kernel,
        [_F32, _BF16, _BF16, _BF16, "i32", "i32", "i32"],
        {"HAS_SCALES": True, "HAS_BIAS": True, "BLOCK": 1024},
        4,
    ),
    "cut": (cut.cut_kernel, [_F32, _I64, _F32, "i32"], {"BLOCK": cut.BLOCK}, cut.NUM_WARPS),
    "chunk": (
        draw.chunk_kernel,
        [_F32, _I64, _F32, _F32, _I32, "i32", "i32"],
        {"CHUNK": draw.CHUNK},
        draw.NUM_WARPS,
    ),
    "row": (draw.row_kernel, [_F32, _I32, _I64, "i32"], {"BLOCK": 64}, 1),
}


def usage(name: str, architecture: int) -> dict[str, int]:
    """Registers of a thread, bytes it spills (`STACK`, `LOCAL`), and a program's shared memory."""
    kernel, types, constants, num_warps = _KERNELS[name]
    names = [each for each in kernel.arg_names if each not in constants]
    signature = dict(zip(names, types, strict=True)) | dict.fromkeys(constants, "constexpr")
    # As when they are launched: addresses and most sizes are multiples of 16.
    attributes = {
        (place,): [["tt.divisibility", 16]]
        for place, kind in enumerate(types)
        if kind.startswith("*") or kind == "i32"
    }
    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=attributes)
    target = GPUTarget("cuda", architecture, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": num_warps})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(_CUOBJDUMP), "--dump-resource-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", printed.stdout))
    return {what: int(number) for what, number in found.items()} | {
        "SHARED": compiled.metadata.shared
    }


def main() -> None:
    """Print the usage of all kernels for all architectures as JSON."""
    print(
        json.dumps(
            {
                name: {
                    str(each): usage(name, each)
                    for each in ARCHITECTURES
                    if name != "round" or each >= _LEAST_FOR_FP8
                }
                for name in _KERNELS
            }
        )
    )


if __name__ == "__main__":
    main()
