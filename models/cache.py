"""Finds the folder of fetched and converted models, outside the repository.

    ~/.cache/outrider/models/smollm2-135m-instruct/       fetched (`python -m models.fetch`)
    ~/.cache/outrider/models/gguf/2/NAME-HASH-DTYPE/      converted from a GGUF file

The folder is next to the kernels' cache. XDG_CACHE_HOME replaces ~/.cache. A model's folder appears
there whole or not at all. One process at a time makes it under another name and renames it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

WAIT_S = 1800.0  # for another process that makes the same folder; a large model from a slow disk


def models_cache() -> Path:
    """Return the root of all stored models; it need not exist.

    Raises:
        ValueError: there is no home to keep them in.
    """
    try:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise ValueError(f"no folder to keep models in: {error}; set XDG_CACHE_HOME") from None
    return Path(root).absolute() / "outrider" / "models"


def make_once(folder: Path, make: Callable[[Path], None], wait_s: float = WAIT_S) -> bool:
    """Let `make` fill a folder, unless it is there. Safe from several processes at once.

    Args:
        folder: what is to exist; after an error, or where the process is killed, it does not.
        make: fills the empty folder that it is given, on the same disk.
        wait_s: for another process that is making it.

    Returns:
        Whether it was made now.

    Raises:
        ValueError: another process took too long, or the disk cannot be written or is full.
    """
    if folder.is_dir():
        return False
    with _naming_the_disk(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(folder.parent / f".{folder.name}.lock", timeout=wait_s):
                return not folder.is_dir() and _make(folder, make)
        except Timeout:
            raise ValueError(
                f"another process has been making {folder} for more than {wait_s:g} s"
            ) from None


def refuse_full_disk(folder: Path, num_bytes: int) -> None:
    """Check that so many bytes can be written in an existing folder.

    Raises:
        ValueError: fewer are free.
    """
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise ValueError(
            f"{num_bytes / 1e6:,.0f} MB are needed in {folder}, {free / 1e6:,.0f} MB are free; "
            "XDG_CACHE_HOME names another disk"
        )


def sha256_of(path: Path) -> str:
    """Return the file's SHA-256, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sum(path: Path, expected: str) -> None:
    """Check that a file is what its sum says.

    Raises:
        ValueError: it is not; has both sums.
    """
    got = sha256_of(path)
    if got != expected:
        raise ValueError(
            f"{path.name} is not the expected file: its SHA-256 is {got}, not {expected}"
        )


def _make(folder: Path, make: Callable[[Path], None]) -> bool:
    prefix = f".{folder.name}.part-"
    for left in folder.parent.glob(f"{prefix}*"):  # by runs that were killed: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        make(part)
        part.chmod(0o755)
        for file in part.iterdir():  # safetensors makes its files for their owner alone
            file.chmod(0o755 if file.is_dir() else 0o644)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return True


@contextlib.contextmanager
def _naming_the_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        raise ValueError(
            f"{folder} cannot be made: {why}; XDG_CACHE_HOME names another place"
        ) from error
