"""What drafts with a target in its process: read before the target is packed, made behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from models.attention.backend import DraftLayer, ModelForward
from models.attention.early_exit import ExitForward
from models.attention.features import layer_windows
from models.checkpoint.loader import Checkpoint
from models.config import EngineConfig
from models.cpu import setup as cpu
from models.heads.config import CHECKPOINT, heads_kind
from models.heads.eagle3 import Eagle3Forward, Eagle3Parts
from models.heads.eagle3_folder import read_eagle3
from models.heads.medusa import MedusaHeads
from models.heads.medusa_folder import read_heads
from models.heads.mtp import MtpForward, MtpParts, read_mtp
from models.heads.mtp_checkpoint import read_own_mtp
from models.layers.linear import make_rowwise


@dataclass(frozen=True, slots=True)
class DraftingParts:
    """What a config names, with its weights; at most one of them.

    Attributes:
        output: [V, F] the target's output layer, where an MTP head drafts by it.
    """

    medusa: MedusaHeads | None = None
    mtp: MtpParts | None = None
    eagle3: Eagle3Parts | None = None
    output: Tensor | None = None


@dataclass(frozen=True, slots=True)
class OwnDrafting:
    """What drafts, behind a target whose weights are laid out.

    Attributes:
        heads: that draft by the states of the pass before; None: there are none.
        layer: that drafts, with keys of its own or the model's; None: there is none.
        windows: of its attention, where the keys are its own.
        states_of: what it drafts by, [R, F], of what the target keeps of a pass.
    """

    heads: MedusaHeads | None = None
    layer: DraftLayer | None = None
    windows: tuple[int | None, ...] = ()
    states_of: Callable[[Tensor], Tensor] = lambda hidden: hidden

    @property
    def num_bytes(self) -> int:
        """Of weights beside the target's."""
        drafting = self.heads or self.layer
        return 0 if drafting is None else drafting.num_bytes


def read_parts(checkpoint: Checkpoint, config: EngineConfig) -> DraftingParts:
    """What the config names, before the model is taken apart: it may share its weights.

    Raises:
        ValueError: it cannot be served with this target; names folder and key.
    """
    if config.heads is None:
        return DraftingParts()
    model, folder = checkpoint.model, Path(config.heads)
    output = model.get_output_embeddings().weight.detach()
    if config.heads == CHECKPOINT:
        return DraftingParts(mtp=read_own_mtp(Path(config.model_path), model), output=output)
    kind = heads_kind(folder)
    if kind == "eagle3":
        return DraftingParts(eagle3=read_eagle3(folder, model))
    if kind == "mtp":
        return DraftingParts(mtp=read_mtp(folder, model), output=output)
    make_linear = cpu.linear_maker(model, config)
    return DraftingParts(
        medusa=MedusaHeads(read_heads(folder, output), checkpoint.num_columns, make_linear)
    )


def make_drafting(
    parts: DraftingParts, checkpoint: Checkpoint, config: EngineConfig, forward: ModelForward
) -> OwnDrafting:
    """What drafts behind a model that was laid out as `forward`, which then keeps states for it.

    Raises:
        ValueError: this model has none, or fewer layers than are to draft.
    """
    if parts.medusa is not None:
        forward.keep_hidden()
        return OwnDrafting(heads=parts.medusa)
    if parts.mtp is not None and parts.output is not None:
        return _with_mtp(parts.mtp, parts.output, checkpoint, config, forward)
    if parts.eagle3 is not None:
        return _with_eagle3(parts.eagle3, checkpoint, config, forward)
    if config.early_exit is not None:
        return OwnDrafting(layer=_first_layers(checkpoint, config.early_exit, forward))
    return OwnDrafting()


def _with_mtp(
    parts: MtpParts,
    output: Tensor,
    checkpoint: Checkpoint,
    config: EngineConfig,
    forward: ModelForward,
) -> OwnDrafting:
    forward.keep_hidden()
    window = checkpoint.windows[-1]  # it is as the last one
    make_linear = cpu.linear_maker(checkpoint.model, config)
    layer = cpu.fuse_mtp(parts, output, forward, window, make_linear)
    return OwnDrafting(
        layer=layer or MtpForward(parts, checkpoint.model, output), windows=(window,)
    )


def _with_eagle3(
    parts: Eagle3Parts, checkpoint: Checkpoint, config: EngineConfig, forward: ModelForward
) -> OwnDrafting:
    forward.keep_hidden(parts.config.layer_ids)
    layer = Eagle3Forward(parts, checkpoint.model)  # it counts its bytes before they are packed
    make_linear = cpu.linear_maker(checkpoint.model, config)
    if make_linear is not None:
        make_rowwise(parts, make_linear)
    windows = layer_windows(parts.config.layer)
    return OwnDrafting(layer=layer, windows=windows, states_of=layer.fused)


def _first_layers(checkpoint: Checkpoint, num_layers: int, forward: ModelForward) -> DraftLayer:
    if num_layers >= checkpoint.num_layers:
        raise ValueError(
            f"early_exit must be below the {checkpoint.num_layers} layers of the model, "
            f"got {num_layers}"
        )
    fused = cpu.fuse_exit(forward, num_layers)
    return fused or ExitForward(forward, checkpoint.model, num_layers)
