"""The form in which a checkpoint's files keep a linear layer's weight in groups.

    NAME.codes   [N, I] uint8 of 8 bits, [N, I / 2] of 4: the code of an even input is lower
    NAME.scales  [N, G] float16
    NAME.minima  [N, G] float16, with 4 bits only

N outputs, I inputs, G groups of `GROUP` inputs. `models/layers/groups.py` says what a code means.
"""

from __future__ import annotations

GROUP = 32  # inputs that share a scale
OFFSET = 128  # of 8-bit codes
CODES, SCALES, MINIMA = ".codes", ".scales", ".minima"
METHOD = "groups"  # quant_method in the config.json of such a folder
FOLDER = "packed"  # in a checkpoint's folder: the same model with weights in groups


def group_bytes(bits: int) -> int:
    """Return the bytes of a group with codes of so many bits, its scale and minimum included."""
    return GROUP * bits // 8 + (2 if bits == 8 else 4)
