"""Writes the parts of a GGUF file as one, because transformers reads one file. Needs no torch.

Large models come as `NAME-00001-of-00003.gguf` and so on. The first part has the settings, and each
has some of the tensors, with offsets of its own.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from models.gguf.header import DEFAULT_ALIGNMENT, GgufHeader, GgufTensor

_COUNTS_END = 24  # magic, version, number of tensors and of settings
_CHUNK_BYTES = 1 << 24


def join(header: GgufHeader, target: Path) -> None:
    """Write all parts of a file as one.

    Args:
        header: of all its parts.
        target: is written.
    """
    alignment = header.settings.get("general.alignment", DEFAULT_ALIGNMENT)
    with header.path.open("rb") as first, target.open("wb") as file:
        counts = first.read(_COUNTS_END)
        file.write(counts[:8] + struct.pack("<Q", len(header.tensors)) + counts[16:])
        file.write(first.read(header.settings_end - _COUNTS_END))
        offset = 0
        for tensor in header.tensors:
            file.write(_entry(tensor, offset))
            offset += _padded(tensor.end - tensor.start, alignment)
        file.write(bytes(_padded(file.tell(), alignment) - file.tell()))
        for tensor in header.tensors:
            _copy(tensor, file)
            file.write(bytes(_padded(file.tell(), alignment) - file.tell()))


def _entry(tensor: GgufTensor, offset: int) -> bytes:
    name = tensor.name.encode()
    sizes = struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape)
    head = struct.pack("<Q", len(name)) + name + struct.pack("<I", len(tensor.shape))
    return head + sizes + struct.pack("<IQ", tensor.type.value, offset)


def _copy(tensor: GgufTensor, file: BinaryIO) -> None:
    with tensor.part.open("rb") as part:
        part.seek(tensor.start)
        left = tensor.end - tensor.start
        while left:
            chunk = part.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise ValueError(f"{tensor.part} was cut off while it was read")
            file.write(chunk)
            left -= len(chunk)


def _padded(length: int, alignment: int) -> int:
    return -(-length // alignment) * alignment
