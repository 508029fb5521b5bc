"""Reads the weights of AWQ and GPTQ as ours in groups of 32 inputs.

Both have codes, scales and zeros: weight = scale * (code - zero). A code is a few bits of a 32-bit
word. Larger groups become several of ours, with the same scale. The minimum of 4-bit codes is the
product of -scale and zero, rounded to float16. Codes of 8 bits are served where every zero is 128.

    AWQ   qweight [I, N / 8], qzeros [G, N / 8], scales [G, N]; outputs of a word: 0 2 4 6 1 3 5 7
    GPTQ  qweight [I / 8, N], qzeros [G, N / 8], scales [G, N], g_idx [I]; zeros are one less but
          for checkpoint_format gptq_v2

Sources: packing_utils.py of github.com/casper-hansen/AutoAWQ, github.com/ModelCloud/GPTQModel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from models.checkpoint.packed_shapes import GROUP_OF, QWEIGHT, QZEROS, WORD_BITS
from models.layers.grouped import StoredGroups
from models.packed_form import GROUP, SCALES

AWQ, GPTQ = "awq", "gptq"
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # outputs by their place in a word
_MIDDLE = 128  # zero of 8-bit codes


def check_terms(terms: Mapping[str, Any]) -> None:
    """Check what a checkpoint says of its groups.

    Args:
        terms: quantization_config, of method AWQ or GPTQ.

    Raises:
        ValueError: such groups are not read; names the key.
    """
    method = terms["quant_method"]
    wanted: dict[str, tuple[object, ...]] = {"bits": (4,) if method == AWQ else (4, 8)}
    if method == AWQ:
        wanted["version"] = ("gemm", "GEMM", None)
    for key, values in wanted.items():
        if terms.get(key) not in values:
            raise ValueError(
                f"quantization_config.{key} of {method} must be "
                f"{' or '.join(map(str, values))}, got {terms.get(key)!r}"
            )
    size = terms.get("group_size")
    if not isinstance(size, int) or (size != -1 and (size < GROUP or size % GROUP)):
        raise ValueError(
            f"quantization_config.group_size of {method} must be a multiple of {GROUP} or -1, "
            f"got {size!r}"
        )


def read_other(tensors: Mapping[str, Tensor], name: str, terms: Mapping[str, Any]) -> StoredGroups:
    """Return the weight of the layer `name`.

    Args:
        tensors: of the files.
        name: of the layer.
        terms: as for `check_terms`.

    Raises:
        ValueError: its inputs are not in the order of groups, or zero is not in the middle.
    """
    bits = int(terms["bits"])
    zeros = _unpacked(tensors[name + QZEROS], bits)  # [G, N]
    if terms["quant_method"] == AWQ:
        codes = _in_awq_order(_unpacked(tensors[name + QWEIGHT], bits))
        zeros = _in_awq_order(zeros)
    else:
        codes = _unpacked(tensors[name + QWEIGHT].T, bits).T
        if terms.get("checkpoint_format") != "gptq_v2":
            zeros = (zeros + 1) & (2**bits - 1)
    scales = tensors[name + SCALES].float()
    size = len(codes) // len(scales)
    _refuse_other_order(tensors.get(name + GROUP_OF), size, name)
    scales, zeros = (one.repeat_interleave(size // GROUP, 0).T for one in (scales, zeros))
    codes = codes.T.contiguous()
    if bits == 8:
        if not bool((zeros == _MIDDLE).all()):
            raise ValueError(f"{name}: 8-bit codes are read with zero at {_MIDDLE} only")
        return StoredGroups(codes.to(torch.uint8), scales.half().contiguous(), None)
    minima = (-scales * zeros).half().contiguous()
    pairs = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    return StoredGroups(pairs, scales.half().contiguous(), minima)


def _unpacked(words: Tensor, bits: int) -> Tensor:  # [n, w] -> [n, w * 32 / bits]
    """Return the codes of words, the lowest bits of each first."""
    shifts = torch.arange(0, WORD_BITS, bits, dtype=torch.int32)
    codes = words.to(torch.int32).unsqueeze(2) >> shifts
    return (codes & (2**bits - 1)).flatten(1)


def _in_awq_order(codes: Tensor) -> Tensor:
    """Return codes [n, N] with the outputs of each word in their order."""
    places = torch.tensor(_AWQ_ORDER).argsort()
    return codes.unflatten(1, (-1, len(places)))[:, :, places].flatten(1)


def _refuse_other_order(group_of: Tensor | None, size: int, name: str) -> None:
    if group_of is None:
        return
    in_order = torch.arange(len(group_of), dtype=group_of.dtype) // size
    if not torch.equal(group_of, in_order):
        raise ValueError(
            f"{name}: its inputs are not in the order of their groups (desc_act), which is not read"
        )
