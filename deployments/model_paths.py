"""Which folder a `model_path` means: as given, in the current folder, or in the repo."""

from __future__ import annotations

from pathlib import Path

REPO_ROOT = Path(__file__).resolve().parent.parent


def resolve_folder(path: str, key: str) -> Path:
    """The existing folder that `path` names: as given, in the current folder, or in the repo.

    Raises:
        ValueError: no such folder; the message names the config key and the places looked at.
    """
    candidates = [Path(path).expanduser().absolute()]
    if not Path(path).expanduser().is_absolute():
        candidates.append(REPO_ROOT / path)
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    places = " and ".join(str(candidate) for candidate in candidates if str(candidate) != path)
    looked = f" (looked at {places})" if places else ""
    raise ValueError(f"{key}: no such folder: {path!r}{looked}")
