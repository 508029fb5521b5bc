"""Finds the checkpoint folder of a GGUF file: converted once, kept in the models' cache.

Everything else sees that folder and knows nothing of GGUF. It is named by the file's content and
the type of weights, so a changed file is converted anew. Knows neither torch nor transformers: a
process of its own converts (`models/gguf/convert.py`), and gives its memory back.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

from models.cache import WAIT_S, models_cache, sha256_of

SOURCE_NAME = "gguf-source.json"  # in a converted folder: what it was made of
PACKED = "packed"  # in place of a type: the weights stay as the file has them
_LAYOUT = "2"  # number of the conversion; raised if it comes to write something else
_REPO_ROOT = Path(__file__).resolve().parents[2]

logger = logging.getLogger("ray.serve")


def gguf_file(path: Path) -> Path | None:
    """Return the GGUF file that a path names.

    It is the path itself, or the only one in a folder without other weights. It is the first part
    of a file in parts.

    Raises:
        ValueError: a folder holds several, or a part is missing.
    """
    if path.suffix == ".gguf" and path.is_file():
        return _parts(path)[0]
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return None
    files = sorted(path.glob("*.gguf"))
    if files and len(files) > len(parts := _parts(files[0])):
        others = [file for file in files if file not in parts]
        raise ValueError(
            f"{path} holds GGUF files of several models; name one, like {files[0].name} or "
            f"{others[0].name}"
        )
    return parts[0] if files else None


def converted_folder(path: Path, dtype: str) -> Path:
    """Return the folder with the file's weights in `dtype`, and make it if it is missing.

    Args:
        path: a GGUF file, or the first of its parts.
        dtype: "float32", "bfloat16", "float16" or `PACKED`, as which a file without weights of
            few bits cannot be had.

    Raises:
        ValueError: the file cannot be converted; with the reason.
    """
    path = path.absolute()
    digests = []
    for part in _parts(path):
        status = part.stat()
        digests.append(_digest(part, status.st_size, status.st_mtime_ns))
    digest = digests[0]
    if len(digests) > 1:
        digest = hashlib.sha256("".join(digests).encode()).hexdigest()
    folder = models_cache() / "gguf" / _LAYOUT / f"{path.stem}-{digest[:16]}-{dtype}"
    if not folder.is_dir():
        _convert(path, folder, dtype)
    return folder


def source_of(folder: str) -> str:
    """Describe the source of a converted folder; "" for any other folder."""
    try:
        source = json.loads((Path(folder) / SOURCE_NAME).read_text(encoding="utf-8"))
        how = "packed as in" if source["dtype"] == PACKED else "dequantised from"
        return (
            f"{how} {source['file']}, {source['file_bytes'] / 1e6:,.1f} MB of "
            f"{', '.join(source['tensor_types'])}"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def stays_packed(path: Path) -> bool:
    """Return whether a GGUF file has weights of few bits, so that its folder can be `PACKED`.

    Raises:
        ValueError: the file is refused.
    """
    status = path.stat()
    return _stays_packed(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _stays_packed(path: Path, num_bytes: int, mtime_ns: int) -> bool:
    """Read the header; size and time only show the cache that a file has changed."""
    from models.gguf.header import read_gguf_header
    from models.gguf.packed import holds_groups

    return holds_groups(read_gguf_header(path))


def _parts(path: Path) -> tuple[Path, ...]:
    # Imported here, as below.
    from models.gguf.header import parts_of

    return parts_of(path)


@functools.lru_cache(maxsize=256)
def _digest(path: Path, num_bytes: int, mtime_ns: int) -> str:
    """SHA-256 of the content; size and time only show the cache that a file has changed."""
    return sha256_of(path)


def _convert(path: Path, folder: Path, dtype: str) -> None:
    # Imported here: it costs the processes that never see such a file some memory.
    from models.gguf.header import read_gguf_header

    header = read_gguf_header(path)
    logger.info(
        "converting %s (%.1f MB of %s) to %s in %s",
        path,
        header.num_bytes / 1e6,
        ", ".join(header.type_names),
        dtype,
        folder,
    )
    command = [sys.executable, "-m", "models.gguf.convert", str(path), str(folder)]
    paths = [str(_REPO_ROOT), os.environ.get("PYTHONPATH", "")]
    try:
        done = subprocess.run(
            [*command, "--dtype", dtype],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=WAIT_S,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"{path} was not converted within {WAIT_S:g} s") from None
    if done.returncode != 0 or not folder.is_dir():
        lines = done.stdout.strip().splitlines()
        raise ValueError(
            lines[-1] if lines else f"converting {path} ended with status {done.returncode}"
        )
