"""Folders of an MTP head for a given target, and what such a head drafts by transformers alone."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

NUM_STEPS = 3
PREFIX = "mtp_layers.0."
_NORMS = ("token_layernorm", "hidden_layernorm", "final_layernorm")


def mtp_weights(target: Path, *, seed: int = 0, scale: float = 0.1) -> dict[str, Tensor]:
    """A random layer for a target."""
    model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    width = model.config.hidden_size
    shapes = {name: value.shape for name, value in model.model.layers[-1].named_parameters()}
    shapes |= {f"{name}.weight": torch.Size([width]) for name in _NORMS}
    shapes["input_proj.weight"] = torch.Size([width, 2 * width])
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in sorted(shapes.items()):
        noise = scale * torch.randn(shape, generator=generator)
        weights[PREFIX + name] = 1 + noise if name.endswith("norm.weight") else noise
    return weights


def repeating(target: Path, *, scale: float = 0.01) -> dict[str, Tensor]:
    """A layer that hands its state on, so that drafts nearly repeat the newest token."""
    weights = mtp_weights(target, scale=scale)
    projection = weights[f"{PREFIX}input_proj.weight"]
    projection[:, : len(projection)] += torch.eye(len(projection))
    return weights


def write_mtp(folder: Path, weights: dict[str, Tensor], **config: object) -> Path:
    """As `speculators` writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    fields: dict[str, object] = {
        "speculators_model_type": "mtp",
        "num_nextn_predict_layers": 1,
        "num_speculative_steps": NUM_STEPS,
    }
    (folder / "config.json").write_text(json.dumps(fields | config))
    save_file(weights, folder / "model.safetensors")
    return folder


class PlainMtp:
    """The same head by transformers' layers over whole texts, nothing kept."""

    def __init__(self, target: Path, folder: Path) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        stored = load_file(folder / "model.safetensors")
        self._weights = {key.removeprefix(PREFIX): value for key, value in stored.items()}
        config = self._model.config
        self._layer = type(self._model.model.layers[-1])(config, layer_idx=0)
        own = {name: self._weights[name] for name in self._layer.state_dict()}
        self._layer.load_state_dict(own)
        self._epsilon = config.rms_norm_eps

    def draft(
        self, tokens: Sequence[int], num_tokens: int, unknown: Collection[int] = ()
    ) -> list[int]:
        """The likeliest ids behind `tokens`, each by the ones before it.

        Rows of `unknown` have zeros for the state before them.
        """
        ids = list(tokens)
        for step in range(num_tokens):
            state = self.state_behind(ids, step, unknown)
            ids.append(int(self._model.lm_head(state).argmax()))
        return ids[len(tokens) :]

    @torch.no_grad()
    def state_behind(
        self, tokens: Sequence[int], num_own: int, unknown: Collection[int] = ()
    ) -> Tensor:
        """The state [F] that gives the token behind these.

        The last `num_own` rows take the head's own state before them in place of the target's.
        """
        num_true = len(tokens) - num_own
        states = self._model.model(torch.tensor([tokens])).last_hidden_state[0][: num_true - 1]
        states = F.pad(states, (0, 0, 1, 0))
        states[list(unknown)] = 0.0
        for length in range(num_true, len(tokens) + 1):
            states = torch.cat([states, self._out(states, tokens[:length])[-1:]])
        return states[-1]

    def _out(self, states: Tensor, ids: Sequence[int]) -> Tensor:
        tokens = self._model.get_input_embeddings()(torch.tensor(ids))
        joined = [self._norm("hidden_layernorm", states), self._norm("token_layernorm", tokens)]
        rows = torch.cat(joined, dim=-1) @ self._weights["input_proj.weight"].T
        length = len(ids)
        may_see = torch.ones(length, length, dtype=torch.bool).tril()
        mask = torch.zeros(length, length).masked_fill(~may_see, torch.finfo(torch.float32).min)
        positions = torch.arange(length)[None]
        places = self._model.model.rotary_emb(rows[None], position_ids=positions)
        out = self._layer(rows[None], attention_mask=mask[None, None], position_embeddings=places)
        return self._norm("final_layernorm", out[0])

    def _norm(self, name: str, rows: Tensor) -> Tensor:
        weight = self._weights[f"{name}.weight"]
        return F.rms_norm(rows, (rows.shape[-1],), weight, self._epsilon)
