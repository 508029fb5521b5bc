"""Several draft steps in a row on the device, without the host knowing what was sampled.

A draft step needs the token before it. Handing that token through the host costs a wait for the
device in every step. That is most of a small draft model's time on a GPU. So drafts whose steps
need nothing from the host run as a chain. Positions, blocks and noise are known beforehand, and
each step's ids stay on the device as the next step's rows. The host looks once, at the end.
Sessions that come meanwhile wait for the chain, a few steps at most.

A token after an eos was sampled in vain, and its KV is never looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from models.device import fetch
from models.engine.runner import ModelRunner, SequenceRows
from models.kv.block_pool import BlockTable, OutOfBlocks
from models.protocol.messages import Sampling
from models.sampling.draws import draw_from_logits
from models.sampling.logits import adjust_logits
from models.sampling.verification import needs_draft_probs
from models.scheduler.sessions import Session

# Terms whose part in sampling does not depend on the tokens before it. A session with any other
# term, known to this module or not, is drafted step by step.
_STATELESS = {
    name: getattr(Sampling(), name)
    for name in (
        *("temperature", "top_p", "top_k", "min_p", "seed", "verification", "logit_bias"),
        *("num_logprobs", "num_prompt_logprobs"),  # only for the target's rows
    )
}


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One session of a chain: its first rows, and how its tokens are sampled."""

    table: BlockTable
    start: int
    token_ids: list[int]
    sampling: Sampling

    @property
    def position(self) -> int:
        """Absolute index of the first token sampled."""
        return self.start + len(self.token_ids)


def is_chainable(session: Session) -> bool:
    """Return whether the session's draft tokens can be sampled without the host."""
    opened = session.opened
    return (
        opened.constraint is None
        and not needs_draft_probs(opened.sampling)
        and msgspec.structs.replace(opened.sampling, **_STATELESS) == Sampling()
    )


def reserve_chain(links: Sequence[ChainLink], num_steps: int) -> int:
    """Room for `num_steps` steps of all sessions, or for as many as there is room for; at least 1.

    Blocks for the first step are there already. Blocks after it are given back with the next resize
    of the table.
    """
    for num_fitting in range(num_steps, 1, -1):
        try:
            for link in links:
                link.table.resize(link.position + num_fitting - 1)
        except OutOfBlocks:
            continue
        return num_fitting
    for link in links:
        link.table.resize(link.position)
    return 1


@torch.inference_mode()
def draw_chain(runner: ModelRunner, links: Sequence[ChainLink], num_steps: int) -> list[list[int]]:
    """Sample `num_steps` tokens for each session.

    It waits for the device once.

    Args:
        runner: of a model that no ranks share.
        links: sessions with room for all steps (`reserve_chain`).
        num_steps: at least 1.
    """
    samplings = [link.sampling for link in links]
    has_bias = any(sampling.logit_bias for sampling in samplings)
    first = [SequenceRows(x.table, x.start, x.token_ids, 1) for x in links]
    sampled = [_draw(runner.forward(first), links, 0)]  # each [S, steps]
    num_done = 1
    while num_done < num_steps:
        ids = sampled[-1][:, -1]
        num_replayed = 0 if has_bias else runner.num_chain_steps(len(links), num_steps - num_done)
        if num_replayed > 0:
            rows = _rows_after(links, num_done, num_replayed)
            sampled.append(runner.draw_steps(rows, ids, samplings))
        else:
            logits = runner.forward(_rows_after(links, num_done, 1), ids)
            sampled.append(_draw(logits, links, num_done))
        num_done += max(num_replayed, 1)
    return fetch(torch.cat(sampled, dim=1))


def _rows_after(links: Sequence[ChainLink], num_done: int, count: int) -> list[SequenceRows]:
    """Return the rows of `count` steps after those done, whose ids the host does not know."""
    return [SequenceRows(x.table, x.position + num_done - 1, [0] * count, 1) for x in links]


def _draw(logits: Tensor, links: Sequence[ChainLink], num_done: int) -> Tensor:  # [S, 1]
    samplings = [link.sampling for link in links]
    logits = adjust_logits(logits, samplings, [None] * len(links))
    positions = [link.position + num_done for link in links]
    return draw_from_logits(logits, samplings, positions).unsqueeze(1)
