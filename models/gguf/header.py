"""Reads what a GGUF file holds, from its header: no weight is read. Needs no torch.

The file begins with its version, settings by name, and the name, shape, type and place of every
tensor. The tensors' blocks follow (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). A
file that is cut off, damaged or of another kind is refused here, before it costs minutes. The
package `gguf` knows the types.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from models.files import refuse_pointer

# The file's name for an architecture is transformers' too. Other architectures may be read by
# transformers as well; these are compared with their folders in tests/models/gguf.
ARCHITECTURES = ("llama", "qwen2", "qwen3")

_VERSIONS = (2, 3)
_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32
_PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<num>\d{5})\.gguf")
_SPLIT_COUNT, _SPLIT_NUMBER, _SPLIT_TENSORS = (
    f"split.{name}" for name in ("count", "no", "tensors.count")
)
ROPE_TABLE = "rope_freqs.weight"  # divisors of rotary frequencies, if these are scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One tensor of the file."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    part: Path  # the file that it is in
    start: int  # its first byte there
    end: int  # the byte after its last

    @property
    def num_elements(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """Settings (numbers, texts; of an array its length) and tensors of a file, or of all its parts.

    Attributes:
        path: the file, or its first part.
        num_bytes: of all parts.
        settings: of the first part, which has them.
        tensors: of all parts.
    """

    path: Path
    num_bytes: int
    settings: dict[str, Any]
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        """The architecture in llama.cpp's words: llama, qwen2."""
        return str(self.settings.get("general.architecture", ""))

    @property
    def num_parameters(self) -> int:
        """Numbers in all weights; tied ones are stored, and counted, once."""
        return sum(one.num_elements for one in self.tensors if one.name != ROPE_TABLE)

    def rope_table(self) -> Any | None:
        """Float32 [frequencies]: what each rotary frequency is divided by; None: nothing.

        Raises:
            ValueError: it is of another type.
        """
        table = next((one for one in self.tensors if one.name == ROPE_TABLE), None)
        if table is None:
            return None
        if table.type != GGMLQuantizationType.F32:
            raise ValueError(f"{self.path}: {ROPE_TABLE} is of type {table.type.name}, not F32")
        return np.fromfile(table.part, "<f4", table.num_elements, offset=table.start)

    @property
    def type_names(self) -> list[str]:
        """Types of its tensors, the one with the most numbers first."""
        counts: Counter[str] = Counter()
        for tensor in self.tensors:
            counts[tensor.type.name] += tensor.num_elements
        return [name for name, _ in counts.most_common()]


def read_gguf_header(path: Path) -> GgufHeader:
    """Read a file's header and check that all it lists is there and can be loaded.

    Args:
        path: of the file, or of any of its parts (`NAME-00001-of-00003.gguf`).

    Raises:
        ValueError: it cannot be read, is cut off or damaged, a part of it is missing or another
            file's, it has tensors of a type that cannot be dequantised, or an architecture that is
            not loaded from GGUF; names the part.
    """
    paths = parts_of(path)
    header = _joined([_read_part(part) for part in paths])
    _refuse_unloadable(header)
    return header


def parts_of(path: Path) -> tuple[Path, ...]:
    """Return all parts of the file that `path` is a part of, by its name; else the file alone.

    Raises:
        ValueError: one is missing; names it.
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        return (path,)
    num_parts = int(match["num"])
    names = [f"{match['stem']}-{i:05}-of-{num_parts:05}.gguf" for i in range(1, num_parts + 1)]
    parts = tuple(path.parent / name for name in names)
    if absent := [part.name for part in parts if not part.is_file()]:
        raise ValueError(
            f"{path.parent} lacks {len(absent)} of the {num_parts} parts of {match['stem']}, first "
            f"{absent[0]}"
        )
    return parts


def _read_part(path: Path) -> GgufHeader:
    refuse_pointer(path)
    try:
        with path.open("rb") as file:
            header = _read(_Source(file, path), path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    end = max((tensor.end for tensor in header.tensors), default=0)
    if end > header.num_bytes:
        raise ValueError(
            f"{path} is cut off: its tensors end at byte {end}, the file has {header.num_bytes}"
        )
    return header


def _joined(parts: list[GgufHeader]) -> GgufHeader:
    first = parts[0]
    for number, part in enumerate(parts):
        # A file that was joined from parts says that it has 0.
        count, place = part.settings.get(_SPLIT_COUNT) or 1, part.settings.get(_SPLIT_NUMBER, 0)
        if (count, place) != (len(parts), number):
            raise ValueError(
                f"{part.path} says that its {_SPLIT_NUMBER} is {place!r} and its {_SPLIT_COUNT} "
                f"{count!r}, by its name they are {number} and {len(parts)}"
            )
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    expected = first.settings.get(_SPLIT_TENSORS, len(tensors))
    if len(parts) > 1 and expected != len(tensors):
        raise ValueError(f"{first.path} and its parts hold {len(tensors)} of {expected} tensors")
    counts = Counter(tensor.name for tensor in tensors)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ValueError(f"{first.path} is damaged: it has tensor {twice[0]!r} twice")
    return replace(
        first,
        num_bytes=sum(part.num_bytes for part in parts),
        tensors=tensors,
    )


def _refuse_unloadable(header: GgufHeader) -> None:
    path, settings = header.path, header.settings
    if header.architecture not in ARCHITECTURES:
        raise ValueError(
            f"{path} is of architecture {header.architecture!r}; from GGUF are loaded: "
            f"{', '.join(ARCHITECTURES)}"
        )
    for tensor in header.tensors:
        if not _can_dequantize(tensor.type):
            raise ValueError(
                f"{path}: tensor {tensor.name!r} is of type {tensor.type.name}, which cannot be "
                "dequantised"
            )
    rope = f"{header.architecture}.rope"
    factor = settings.get(f"{rope}.scaling.factor") or settings.get(f"{rope}.scale_linear") or 1.0
    # llama.cpp scales linearly where a file has a factor alone.
    scaling = settings.get(f"{rope}.scaling.type", "none" if factor == 1.0 else "linear")
    if scaling != "none":
        raise ValueError(
            f"{path} scales its rotary positions ({scaling}), which is not read from GGUF; serve "
            "the model's own folder"
        )


class _Source:
    """Reads numbers and texts in order; refuses a file that ends too early."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self.num_bytes = path.stat().st_size

    def tell(self) -> int:
        return self._file.tell()

    def take(self, num_bytes: int) -> bytes:
        self._refuse_beyond(num_bytes)
        return self._file.read(num_bytes)

    def skip(self, num_bytes: int) -> None:
        self._refuse_beyond(num_bytes)
        self._file.seek(num_bytes, 1)

    def number(self, form: str) -> Any:
        [value] = struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))
        return value

    def text(self) -> str:
        try:
            return self.take(self.number("Q")).decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{self._path} is damaged: a name is not UTF-8") from None

    def _refuse_beyond(self, num_bytes: int) -> None:
        if num_bytes > self.num_bytes - self._file.tell():
            raise ValueError(
                f"{self._path} is cut off or damaged: its header goes beyond its "
                f"{self.num_bytes} bytes"
            )


def _read(source: _Source, path: Path) -> GgufHeader:
    if source.num_bytes < 4 or source.take(4) != b"GGUF":
        raise ValueError(f"{path} is no GGUF file: it does not begin with GGUF")
    version = source.number("I")
    if version not in _VERSIONS:
        known = " and ".join(map(str, _VERSIONS))
        raise ValueError(f"{path} is of GGUF version {version}; versions {known} are read")
    num_tensors, num_settings = source.number("Q"), source.number("Q")
    settings = {}
    for _ in range(num_settings):
        name = source.text()
        settings[name] = _value(source, source.number("I"), path)
    entries = [_entry(source, path) for _ in range(num_tensors)]
    alignment = settings.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"{path} is damaged: general.alignment is {alignment!r}")
    start = math.ceil(source.tell() / alignment) * alignment
    tensors = tuple(_tensor(path, start, *entry) for entry in entries)
    return GgufHeader(
        path=path,
        num_bytes=source.num_bytes,
        settings=settings,
        tensors=tensors,
    )


def _value(source: _Source, kind: int, path: Path) -> Any:
    if kind in _FORMATS:
        return source.number(_FORMATS[kind])
    if kind == _STRING:
        return source.text()
    if kind != _ARRAY:
        raise ValueError(f"{path} is damaged: a setting of kind {kind}")
    element, length = source.number("I"), source.number("Q")
    if element == _STRING:
        for _ in range(length):
            source.skip(source.number("Q"))
    elif element in _FORMATS:
        source.skip(length * struct.calcsize(f"<{_FORMATS[element]}"))
    else:
        raise ValueError(f"{path} is damaged: an array of kind {element}")
    return length


def _entry(source: _Source, path: Path) -> tuple[str, tuple[int, ...], int, int]:
    name = source.text()
    num_dimensions = source.number("I")
    if num_dimensions > _MOST_DIMENSIONS:
        raise ValueError(f"{path} is damaged: tensor {name!r} has {num_dimensions} dimensions")
    shape = tuple(source.number("Q") for _ in range(num_dimensions))
    return name, shape, source.number("I"), source.number("Q")


def _tensor(
    path: Path, start: int, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> GgufTensor:
    try:
        known = GGMLQuantizationType(kind)
    except ValueError:
        raise ValueError(
            f"{path}: tensor {name!r} is of type {kind}, which the package gguf does not know"
        ) from None
    block_elements, block_bytes = GGML_QUANT_SIZES[known]
    if shape and shape[0] % block_elements:
        raise ValueError(
            f"{path} is damaged: rows of tensor {name!r} have {shape[0]} numbers, no multiple of "
            f"{block_elements}, the block of {known.name}"
        )
    num_elements = math.prod(shape)
    return GgufTensor(
        name=name,
        shape=shape,
        type=known,
        part=path,
        start=start + offset,
        end=start + offset + num_elements // block_elements * block_bytes,
    )


@functools.cache
def _can_dequantize(kind: GGMLQuantizationType) -> bool:
    _, block_bytes = GGML_QUANT_SIZES[kind]
    try:
        dequantize(np.zeros((1, block_bytes), np.uint8), kind)
    except NotImplementedError:
        return False
    return True
