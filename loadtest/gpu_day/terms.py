"""Terms shared by all parts, and the engines that they open."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch

from deployments.config.sections.models import ModelConfig
from models.engine.runner import ModelRunner

EngineName = Literal["target", "draft"]

CONTEXT = 300  # tokens before the rows of a pass
MAX_MODEL_LEN = 512
MOST_SESSIONS = 48
_SESSION_TOKENS = MAX_MODEL_LEN  # context and rows, in whole blocks of any size

# The target's: torch's own, in one order of adding for any number of rows, those with weights of 8
# bits, with weights and inputs of 8 bits.
Products = Literal["plain", "invariant", "int8", "fp8"]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Terms of a part: the pair, the device and the repeats.

    Attributes:
        pair: folder with `target` and `draft`.
        device: torch device of the first card: cuda, or cpu for a try without one.
        repeats: turns of each line of a measurement.
        folder: where a part may leave further files.
    """

    pair: Path
    device: str
    repeats: int
    folder: Path

    @property
    def is_gpu(self) -> bool:
        """True if the device is a GPU; otherwise stand-ins run."""
        return torch.device(self.device).type == "cuda"

    @property
    def graph_modes(self) -> tuple[Literal["auto", "off", "eager"], ...]:
        """The modes with and without graphs.

        A CPU records no graphs; it calls again instead of a replay.
        """
        return ("auto", "off") if self.is_gpu else ("eager", "off")

    def card(self, index: int) -> str:
        """Return the device of the card with that number; a CPU is all cards."""
        return f"cuda:{index}" if self.is_gpu else self.device

    def num_cards(self) -> int:
        """Return the number of cards."""
        return torch.cuda.device_count() if self.is_gpu else 2

    def to_json(self) -> str:
        """Return the terms as JSON for the process of a part."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Terms:
        """Read the terms from the text of `to_json`."""
        values = json.loads(text)
        for name in ("pair", "folder"):
            values[name] = Path(values[name])
        return cls(**values)


def engine_config(
    terms: Terms,
    name: EngineName,
    *,
    graphs: Literal["auto", "off", "eager"] = "auto",
    card: int = 0,
    products: Products = "plain",
) -> ModelConfig:
    """Return the config of a model of the pair, with a paged kernel and room for MOST_SESSIONS."""
    return ModelConfig(
        model_path=str((terms.pair / name).resolve()),
        device=terms.card(card),
        max_model_len=MAX_MODEL_LEN,
        kv_cache_tokens=MOST_SESSIONS * _SESSION_TOKENS,
        max_num_batched_tokens=MAX_MODEL_LEN,
        attention="varlen",
        graphs=graphs,
        batch_invariant=products == "invariant",
        quantization=products if products in ("int8", "fp8") else None,
        enable_prefix_caching=False,  # runs repeat their prompts
    )


def open_target(
    terms: Terms,
    graphs: Literal["auto", "off", "eager"] = "auto",
    products: Products = "plain",
) -> ModelRunner:
    """Load the target in this process."""
    return ModelRunner(engine_config(terms, "target", graphs=graphs, products=products))
