"""Drafters in a target's process: read before the target is packed, made behind it.

If ranks share the target, each has its part of the drafter. A layer with keys is divided as the
target's own are, so its keys are those of the rank's heads. An output layer is divided by words, as
the target's is. Small parts (norms, the joining product of an MTP head) are whole on every rank.
Parts that only the leader computes are there alone. These are the fusing of an EAGLE-3 head and the
residual layers of Medusa heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from models.attention.backend import DraftLayer, ModelForward
from models.attention.early_exit import ExitForward
from models.attention.features import layer_windows
from models.checkpoint.loader import Checkpoint
from models.config import EngineConfig
from models.cpu import setup as cpu
from models.heads.config import CHECKPOINT, heads_kind
from models.heads.draft_ids import IdsOutput, Words
from models.heads.eagle3 import Eagle3Forward, Eagle3Parts
from models.heads.eagle3_folder import read_eagle3
from models.heads.medusa import MedusaHeads
from models.heads.medusa_folder import read_heads
from models.heads.mtp import MtpForward, MtpParts, read_mtp
from models.heads.mtp_checkpoint import read_own_mtp
from models.layers.grouped import as_tensor, has_groups, weight_of
from models.layers.groups import GroupedWeight
from models.layers.linear import make_rowwise
from models.layers.shapes import shapes_of
from models.parallel.layers import GatheredLinear, ParallelEmbedding, divide, refuse_undivided
from models.parallel.plan import layer_plan
from models.parallel.ranks import TensorParallel


@dataclass(frozen=True, slots=True)
class DraftingParts:
    """The parts that a config names, with their weights; at most one of them.

    Attributes:
        output: [V, F] the weight of the target's output layer, where an MTP head drafts by it; of a
            rank its words' rows.
    """

    medusa: MedusaHeads | None = None
    mtp: MtpParts | None = None
    eagle3: Eagle3Parts | None = None
    output: Tensor | GroupedWeight | None = None


@dataclass(frozen=True, slots=True)
class OwnDrafting:
    """The drafter behind a target whose weights are laid out.

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
        """The bytes of weights beside the target's."""
        drafting = self.heads or self.layer
        return 0 if drafting is None else drafting.num_bytes


def read_parts(checkpoint: Checkpoint, config: EngineConfig) -> DraftingParts:
    """Read the config's parts before the model is taken apart.

    They may share its weights.

    Raises:
        ValueError: it cannot be served with this target; names folder and key.
    """
    if config.heads is None:
        return DraftingParts()
    model, folder = checkpoint.model, Path(config.heads)
    ranks, words = checkpoint.ranks, _words(checkpoint)
    output = _output_weight(checkpoint)
    is_whole = ranks is None and not has_groups(model)
    shape = model if is_whole else _whole_shape(model)
    kind = "mtp" if config.heads == CHECKPOINT else heads_kind(folder)
    if kind == "eagle3":
        eagle3 = read_eagle3(folder, shape, model.device)
        if ranks is not None:
            _divide_eagle3(eagle3, checkpoint, ranks, config.heads)
        return DraftingParts(eagle3=eagle3)
    if kind == "mtp":
        device = None if is_whole else model.device
        if config.heads == CHECKPOINT:
            mtp = read_own_mtp(Path(config.model_path), shape, device)
        else:
            mtp = read_mtp(folder, shape, device)
        if ranks is not None:
            divide(mtp.layer, layer_plan(model.tp_plan), ranks)
            mtp.vocab_size, mtp.draft_ids = words.num, words.places(mtp.draft_ids)
        return DraftingParts(mtp=mtp, output=output)
    weights = read_heads(folder, as_tensor(output), words)
    make_linear = cpu.linear_maker(model, config)
    if ranks is None:
        return DraftingParts(medusa=MedusaHeads(weights, words.num, make_linear))
    if not ranks.is_leader:
        weights = replace(weights, layers=[])
    return DraftingParts(
        medusa=MedusaHeads(weights, words.num, make_linear, ranks.gather_to_leader)
    )


def _words(checkpoint: Checkpoint) -> Words:
    """Return the ids whose logits are made here."""
    total, ranks = checkpoint.num_columns, checkpoint.ranks
    if ranks is None:
        return Words(0, total, total)
    num = total // ranks.world_size
    return Words(ranks.rank * num, num, total)


def _output_weight(checkpoint: Checkpoint) -> Tensor | GroupedWeight:
    """Return the rows of the target's output layer for the words here."""
    output: Any = checkpoint.model.get_output_embeddings()
    whole: Any = output.linear if isinstance(output, GatheredLinear) else output
    return weight_of(whole)


def _whole_shape(model: PreTrainedModel) -> PreTrainedModel:
    config: Any = model.config
    return shapes_of(config, model.dtype, config._attn_implementation)


def _divide_eagle3(
    parts: Eagle3Parts, checkpoint: Checkpoint, ranks: TensorParallel, folder: str
) -> None:
    """Keep what this rank has of a head."""
    words, head = _words(checkpoint), parts.lm_head.weight.detach()
    plan = layer_plan(checkpoint.model.tp_plan)
    refuse_undivided(f"heads {folder!r}", parts.layers[0], plan, ranks.world_size)
    divide(parts.layers[0], plan, ranks)
    own = IdsOutput(words.rows(head, parts.draft_ids), words.places(parts.draft_ids), words.num)
    parts.lm_head, parts.draft_ids = GatheredLinear(own, ranks, leader_only=True), None
    if parts.embed_tokens is not None:
        rows = words.rows(parts.embed_tokens.weight.detach(), None)
        parts.embed_tokens = ParallelEmbedding(rows, ranks)
    if not ranks.is_leader:
        parts.leave_fusing()


def make_drafting(
    parts: DraftingParts, checkpoint: Checkpoint, config: EngineConfig, forward: ModelForward
) -> OwnDrafting:
    """Make the drafter behind a model that was laid out as `forward`.

    The model then keeps states for it.

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
    output: Tensor | GroupedWeight,
    checkpoint: Checkpoint,
    config: EngineConfig,
    forward: ModelForward,
) -> OwnDrafting:
    forward.keep_hidden()
    window = checkpoint.windows[-1]  # it is as the last one
    make_linear = cpu.linear_maker(checkpoint.model, config)
    fused = cpu.fuse_mtp(parts, output, forward, window, make_linear)
    if fused is not None:
        return OwnDrafting(layer=fused, windows=(window,))
    layer = MtpForward(parts, checkpoint.model, _mtp_output(parts, output, checkpoint))
    if make_linear is not None:
        make_rowwise(parts, make_linear)
    return OwnDrafting(layer=layer, windows=(window,))


def _mtp_output(
    parts: MtpParts, output: Tensor | GroupedWeight, checkpoint: Checkpoint
) -> nn.Module:
    """Return the target's own output layer, or its rows that the head drafts."""
    if parts.draft_ids is None:
        whole: nn.Module = checkpoint.model.get_output_embeddings()
        return whole
    whole_output = as_tensor(output)
    own = IdsOutput(whole_output[parts.draft_ids], parts.draft_ids, len(whole_output))
    ranks = checkpoint.ranks
    return own if ranks is None else GatheredLinear(own, ranks, leader_only=True)


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
