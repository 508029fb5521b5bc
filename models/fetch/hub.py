"""Models of the Hugging Face hub by name: `org/name` in a config, at one commit, in its cache.

A name becomes the folder of a snapshot, `.../models--org--name/snapshots/COMMIT` under `HF_HOME`.
The small files are in it, which is enough to check a config. The folder's path has repository and
commit. So a process that gets it fetches the files that its own node lacks, the weights above all.
All nodes get the same files. A fetched file is never run. Weights count if their sums are the
hub's.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from models.cache import check_sum
from models.checkpoint.stored_weights import INDEX_NAME, WEIGHTS_NAME, missing_shards

SMALL_FILES = ("*.json", "*.jinja")
# Folders of a repository hold other formats of the same weights, and further chat templates.
ELSEWHERE = ["*/*.json", "*/*.safetensors"]
_File = tuple[str, int, str | None]  # name, bytes, SHA-256
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_SNAPSHOT = re.compile(r"models--(?P<org>.+?)--(?P<name>.+)/snapshots/(?P<commit>[0-9a-f]{40})")
_TIMEOUT_S = 30.0  # for each answer of the hub; a download ends when nothing comes for 10 s
_REACHED_S = 5.0  # for the hub to answer at all
_REMEMBERED_S = 30.0  # time that the hub's answer or silence is remembered
_SERVER_ERROR = 500
_ERROR_LENGTH = 300  # letters of a hub's error; it may answer with a page


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a repository in a cache."""

    repository: str
    commit: str
    cache: Path

    def __str__(self) -> str:
        """Return the name as people write it."""
        return f"{self.repository} at {self.commit[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """The missing files of a snapshot."""

    snapshot: Snapshot
    num_bytes: int
    num_files: int

    def __str__(self) -> str:
        """Describe the missing files, their size and the folder that they go to."""
        files = f"{self.num_files} file{'s' if self.num_files > 1 else ''}"
        return (
            f"{self.num_bytes / 1e6:,.1f} MB in {files} of {self.snapshot} are to be downloaded "
            f"into {self.snapshot.cache}"
        )


def is_hub_name(path: str) -> bool:
    """Return whether a path that is no folder could be the name of a model on the hub."""
    return _NAME.fullmatch(path) is not None and not path.endswith(".gguf")


def snapshot_of(folder: Path) -> Snapshot | None:
    """Return the snapshot of a folder that may not exist; None for another folder."""
    match = _SNAPSHOT.fullmatch("/".join(folder.parts[-3:]))
    if match is None:
        return None
    return Snapshot(f"{match['org']}/{match['name']}", match["commit"], folder.parents[2])


def found_on_hub(repository: str, revision: str | None) -> Path:
    """Return the folder of a model at a commit, tag or branch (None: `main`), with its small files.

    If the hub cannot be reached (`HF_HUB_OFFLINE`, no network), the cached files of that revision
    are taken.

    Raises:
        ValueError: neither hub nor cache has it; says why and what to do.
    """
    from huggingface_hub import snapshot_download

    absence = hub_absence()
    with _explained(repository, revision, absence):
        return Path(
            snapshot_download(
                repository,
                revision=revision,
                allow_patterns=list(SMALL_FILES),
                ignore_patterns=ELSEWHERE,
                etag_timeout=_TIMEOUT_S,
                local_files_only=bool(absence),
            )
        )


def is_whole(folder: Path) -> bool:
    """Return whether a checkpoint's weights are all there.

    Small files are fetched before them.

    Raises:
        ValueError: there is an index that cannot be read.
    """
    has_config = (folder / "config.json").is_file()
    has_weights = any((folder / name).is_file() for name in (WEIGHTS_NAME, INDEX_NAME))
    return has_config and has_weights and not missing_shards(folder)


def missing_of(folder: Path) -> Download | None:
    """Return the missing weights of a snapshot; None if nothing is missing or it is no snapshot.

    Raises:
        ValueError: the hub cannot be asked, or has no safetensors weights of this model.
    """
    snapshot = snapshot_of(folder)
    if snapshot is None or is_whole(folder):
        return None
    sizes = [size for _, size, _ in _absent(folder, snapshot)]
    return Download(snapshot=snapshot, num_bytes=sum(sizes), num_files=len(sizes))


def _absent(folder: Path, snapshot: Snapshot) -> list[_File]:
    """Return the weights that are read (see `stored_weights`) and not in the folder."""
    files = {file[0]: file for file in _weights(snapshot)}
    if WEIGHTS_NAME not in files and not (folder / INDEX_NAME).is_file():
        raise ValueError(
            f"{snapshot} has neither {WEIGHTS_NAME} nor {INDEX_NAME} on the hub, only "
            f"{', '.join(sorted(files)[:3])}"
        )
    names = [WEIGHTS_NAME] if WEIGHTS_NAME in files else missing_shards(folder)
    return [files[name] for name in names if name in files and not (folder / name).exists()]


def bring(folder: Path, tell: Callable[[str], None], *, weights: bool = True) -> None:
    """Download what a snapshot's folder lacks on this node. Any other folder is left as it is.

    Safe from several processes at once: one downloads a file, the others wait for it.

    Args:
        folder: as `found_on_hub` gave it, maybe on another node.
        tell: is told the size before anything large is downloaded, and the end.
        weights: whether weights are wanted, or the small files alone.

    Raises:
        ValueError: it cannot be had, is not what the hub says it is, or the disk is full.
    """
    snapshot = snapshot_of(folder)
    if snapshot is None or is_whole(folder) or (not weights and _has_small_files(folder)):
        return
    if absence := hub_absence():
        raise ValueError(_unreached(snapshot.repository, snapshot.commit, absence))
    with _explained(snapshot.repository, snapshot.commit):
        _download(snapshot, SMALL_FILES)
    if not weights or (missing := missing_of(folder)) is None:
        return
    _refuse_full_disk(missing)
    tell(str(missing))
    absent = _absent(folder, snapshot)
    with _explained(snapshot.repository, snapshot.commit):
        _download(snapshot, [name for name, _, _ in absent])
    for name, _, digest in absent:
        if digest is not None:  # else a small file, which the hub keeps without a sum
            _keep_if_right(folder / name, digest)
    tell(f"{snapshot} is there")


def _has_small_files(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "tokenizer.json").is_file()


def _download(snapshot: Snapshot, patterns: Sequence[str]) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(
        snapshot.repository,
        revision=snapshot.commit,
        cache_dir=snapshot.cache,
        allow_patterns=list(patterns),
        ignore_patterns=ELSEWHERE,
        etag_timeout=_TIMEOUT_S,
    )


@lru_cache(maxsize=64)  # the files of a commit never change
def _weights(snapshot: Snapshot) -> tuple[_File, ...]:
    """Name, bytes and SHA-256 of the weights that the hub has at a commit."""
    from huggingface_hub import HfApi

    if absence := hub_absence():
        raise ValueError(_unreached(snapshot.repository, snapshot.commit, absence))
    with _explained(snapshot.repository, snapshot.commit):
        info = HfApi().model_info(
            snapshot.repository,
            revision=snapshot.commit,
            files_metadata=True,
            timeout=_TIMEOUT_S,
        )
    files = tuple(
        (file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None)
        for file in info.siblings or ()
        if file.rfilename.endswith(".safetensors") and "/" not in file.rfilename
    )
    if not files:
        raise ValueError(f"{snapshot} has no *.safetensors weights on the hub")
    return files


def _keep_if_right(path: Path, expected: str) -> None:
    try:
        check_sum(path, expected)
    except ValueError as error:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise ValueError(f"{error}; it was removed") from None


def _refuse_full_disk(missing: Download) -> None:
    cache = missing.snapshot.cache
    free = shutil.disk_usage(cache).free
    if free < missing.num_bytes:
        raise ValueError(
            f"{missing}, and {free / 1e6:,.1f} MB are free there; HF_HOME names another disk"
        )


def hub_absence() -> str:
    """Why the hub cannot be asked now; empty: it answers, or the library is told to ask nobody.

    Its own library asks six times with pauses between, for each file and each caller. Here it is
    asked once, for seconds, and the answer counts for all for a while. All who ask the hub come by
    here, so its telemetry is switched off here, unless the environment says otherwise.
    """
    from huggingface_hub import constants

    if "HF_HUB_DISABLE_TELEMETRY" not in os.environ:  # which the library has read already
        constants.HF_HUB_DISABLE_TELEMETRY = True
    if constants.HF_HUB_OFFLINE:
        return ""
    return _absence(constants.ENDPOINT, int(time.monotonic() // _REMEMBERED_S))


@lru_cache(maxsize=1)
def _absence(endpoint: str, _: int) -> str:
    """Ask in a thread of its own, and return why there is no answer.

    Nothing limits how long a name takes to resolve.
    """
    found: list[str] = []
    asking = threading.Thread(target=lambda: found.append(_asked(endpoint)), daemon=True)
    asking.start()
    asking.join(2 * _REACHED_S)
    return found[0] if found else f"no answer within {2 * _REACHED_S:g} s"


def _asked(endpoint: str) -> str:
    from huggingface_hub import get_session

    try:
        status = get_session().head(endpoint, timeout=_REACHED_S).status_code
    except Exception as error:  # noqa: BLE001 - whatever the HTTP client of the library raises
        return " ".join(str(error).split())[:_ERROR_LENGTH] or type(error).__name__
    return f"it answers with status {status}" if status >= _SERVER_ERROR else ""


def _unreached(repository: str, revision: str | None, absence: str) -> str:
    from huggingface_hub import constants

    at = f"{repository} at revision {revision or constants.DEFAULT_REVISION}"
    return (
        f"{at} is not whole in {constants.HF_HUB_CACHE}, and {constants.ENDPOINT} cannot be "
        f"reached ({absence}); where it can, {_command(repository, revision)} fetches it"
    )


def _command(repository: str, revision: str | None) -> str:
    at = "" if revision is None else f" --revision {revision}"
    return f"`python -m models.fetch {repository}{at}`"


@contextmanager
def _explained(repository: str, revision: str | None, absence: str = "") -> Iterator[None]:
    """Make errors of the hub's library one sentence that says what to do."""
    try:
        yield
    except Exception as error:  # whatever the HTTP client of the library raises
        if absence:
            raise ValueError(_unreached(repository, revision, absence)) from error
        raise ValueError(_reason(repository, revision, error)) from error


def _reason(repository: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import constants, errors

    at = f"{repository} at revision {revision or constants.DEFAULT_REVISION}"
    causes = list(_causes(error))
    if any(isinstance(one, errors.GatedRepoError) for one in causes):
        return f"{repository} is gated: accept its terms on the hub and set HF_TOKEN"
    if any(isinstance(one, errors.RevisionNotFoundError) for one in causes):
        return f"the hub's {repository} has no revision {revision!r}"
    if any(isinstance(one, errors.RepositoryNotFoundError) for one in causes):
        return (
            f"the hub has no {repository}, or it is private: then set HF_TOKEN to one that may "
            "read it"
        )
    if constants.HF_HUB_OFFLINE:
        return (
            f"{at} is not whole in {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set: unset it, "
            f"or fetch it beforehand with {_command(repository, revision)}"
        )
    if any(isinstance(one, errors.LocalEntryNotFoundError) for one in causes):
        return _unreached(repository, revision, "it answered, and then no longer")
    why = " ".join(str(error).split())[:_ERROR_LENGTH]
    return f"{at} did not come from {constants.ENDPOINT}: {why}"


def _causes(error: BaseException | None) -> Iterator[Any]:
    while error is not None:
        yield error
        error = error.__cause__
