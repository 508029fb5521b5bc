"""`varlen_attn` in plain torch: what kernels are compared with, and what stands in on a CPU.

Same arguments, same result, on any device and for any dtype, but slow: every row gathers its own
keys. Nothing in it looks at a value on the host, so it runs wherever the kernel would.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.gpu.kernel import VarlenKernel

_ROWS_PER_CALL = 64  # bounds the memory of the gathered keys


def reference_varlen_attn(  # noqa: PLR0913  (the parameters of torch's)
    query: Tensor,  # [R, H, D]
    key: Tensor,  # [pages, block_size, K, D]
    value: Tensor,  # [pages, block_size, K, D]
    cu_seq_q: Tensor,  # [S + 1] int32
    cu_seq_k: Tensor | None,  # not read: `seqused_k` says it
    max_q: int,
    max_k: int,
    *,
    return_aux: object = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,  # [S] int32
    block_table: Tensor | None = None,  # [S, W] int32
    num_splits: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention [R, H, D], and with `return_aux` its log-sum-exp [H, R] in float32 as well.

    A session's last row is at its last key; window (left, right) counts from there and -1 is
    no limit. Rows after the last cumulative count belong to nobody: their result is 0.

    Raises:
        ValueError: no block table, no key counts, or head counts that do not fit.
    """
    if block_table is None or seqused_k is None:
        raise ValueError("the reference needs block_table and seqused_k")
    num_heads, key_heads = query.shape[1], key.shape[2]
    if num_heads % key_heads or (num_heads != key_heads and not enable_gqa):
        raise ValueError(f"{num_heads} query heads on {key_heads} key heads, {enable_gqa=}")
    rows = torch.arange(query.shape[0], device=query.device)
    session = torch.searchsorted(cu_seq_q[1:].long().contiguous(), rows, right=True)
    is_real = session < block_table.shape[0]
    session = session.clamp(max=block_table.shape[0] - 1)
    to_end = cu_seq_q[1:].long()[session] - rows  # rows to the session's end, 1 for its last
    position = torch.where(is_real, seqused_k.long()[session] - to_end, -1)
    scale = query.shape[2] ** -0.5 if scale is None else scale
    outs, log_sums = [], []
    for part in rows.split(_ROWS_PER_CALL):
        visible = _visible(position[part], seqused_k[session[part]], key, block_table, window_size)
        pages = block_table[session[part]].long()
        out, log_sum = _attend(query[part], key[pages], value[pages], visible, scale)
        outs.append(out)
        log_sums.append(log_sum)
    out = torch.cat(outs)
    return (out, torch.cat(log_sums).T) if return_aux is not None else out


def reference_kernel() -> VarlenKernel:
    """Return the reference as a kernel."""
    return VarlenKernel(
        reference_varlen_attn, aux_request=True, wants_cumulative_keys=False, name="reference"
    )


def _visible(
    position: Tensor,  # [r]
    num_keys: Tensor,  # [r]
    key: Tensor,
    block_table: Tensor,
    window_size: tuple[int, int],
) -> Tensor:  # [r, L]
    """Return the keys that each row sees."""
    left, right = window_size
    keys = torch.arange(block_table.shape[1] * key.shape[1], device=key.device)
    visible = keys < num_keys[:, None]
    if left >= 0:
        visible &= keys >= position[:, None] - left
    if right >= 0:
        visible &= keys <= position[:, None] + right
    return visible


def _attend(
    query: Tensor,  # [r, H, D]
    pages: Tensor,  # [r, W, block_size, K, D]
    values: Tensor,  # the same
    visible: Tensor,  # [r, L]
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attention [r, H, D] in the query's dtype and log-sum-exp [r, H], computed in float32."""
    num_groups = query.shape[1] // pages.shape[3]
    keys = pages.flatten(1, 2).float().repeat_interleave(num_groups, dim=2)  # [r, L, H, D]
    contents = values.flatten(1, 2).float().repeat_interleave(num_groups, dim=2)
    scores = torch.einsum("rhd,rlhd->rhl", query.float(), keys) * scale
    scores = scores.masked_fill(~visible[:, None], float("-inf"))
    log_sum = scores.logsumexp(dim=-1)
    weights = torch.exp(scores - log_sum.clamp(min=torch.finfo(torch.float32).min)[..., None])
    contents = contents.masked_fill(~visible[:, :, None, None], 0)  # hidden NaNs do not count
    return torch.einsum("rhl,rlhd->rhd", weights, contents).to(query.dtype), log_sum
