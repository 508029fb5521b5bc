"""Pairs of checkpoints by the labels that results call them, on the command line LABEL=DIR."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PairPath:
    """A pair of checkpoints and what it is called in tables."""

    label: str
    path: Path  # holds target/ and draft/

    @classmethod
    def parse(cls, text: str) -> PairPath:
        """LABEL=DIR, or DIR, whose last part is the label then.

        Raises:
            ValueError: DIR has no target/ or draft/.
        """
        label, _, directory = text.rpartition("=")
        path = Path(directory)
        for part in ("target", "draft"):
            if not (path / part / "config.json").is_file():
                raise ValueError(f"pair {directory!r} has no {part}/config.json")
        return cls(label or path.resolve().name, path)
