"""Checks that the target could have drawn a text: every token's score is finite in its own row.

This is the only promise that the rule `rejection` makes of a single text. Scores come from one pass
of the reference runner over the whole text and from `process_logits`. Passes do not change a row's
logits (`batch_invariant`), so this is exact.
"""

from __future__ import annotations

import torch

from loadtest.fuzz.engines.world import emptied, reference_runner
from models.engine.runner import SequenceRows
from models.grammar.host import GrammarHost
from models.protocol.messages import GrammarClose, GrammarOpen, MaskRequest, Masks
from models.protocol.token_sequence import EMPTY_HASH
from models.sampling.logits import process_logits
from models.sampling.penalties import RowCounts, TokenHistory, has_penalties
from models.sampling.token_rules import forbidden_ids
from router.types import GenerationRequest

_MASK_ROWS = 16  # in one request


def undrawable(request: GenerationRequest, ids: tuple[int, ...], host: GrammarHost) -> list[str]:
    """Return the first token of a text that its target cannot draw there; none if it can."""
    runner = emptied(reference_runner())
    whole = [*request.prompt_ids, *ids]
    table = runner.pool.new_table()
    table.resize(len(whole))
    logits = runner.forward(
        [SequenceRows(table=table, start=0, token_ids=whole[:-1], num_logits=len(ids))]
    )
    table.free()
    sampling, eos_ids = request.sampling, [*request.eos_ids]
    if request.ignore_eos:
        eos_ids = []
    eos_ids += request.stop_token_ids
    counts: list[RowCounts] = []
    if has_penalties(sampling):
        num_prompt = len(request.prompt_ids)
        history = TokenHistory(logits.shape[1], num_prompt, list(request.prompt_ids))
        for at, token_id in enumerate(ids):
            counts += history.rows(num_prompt + at, [], 1)
            history.add(num_prompt + at, [token_id])
    scores = process_logits(
        logits,
        [sampling] * len(ids),
        _masks(request, ids, host),
        counts,
        [forbidden_ids(sampling, eos_ids, ids[:at]) for at in range(len(ids))],
    )
    rows = torch.arange(len(ids))
    is_possible = scores[rows, torch.tensor(ids)].isfinite().tolist()
    if all(is_possible):
        return []
    at = is_possible.index(False)
    return [f"{request.request_id}: token {at}, id {ids[at]}, cannot be drawn there"]


def _masks(
    request: GenerationRequest, ids: tuple[int, ...], host: GrammarHost
) -> list[bytes | None]:
    """Return the mask of each token's row."""
    if request.grammar is None:
        return [None] * len(ids)
    name = f"{request.request_id}-support"
    host.handle([GrammarOpen(session_id=name, epoch=1, grammar=request.grammar)])
    masks: list[bytes | None] = []
    for first in range(0, len(ids), _MASK_ROWS):
        last = min(first + _MASK_ROWS, len(ids)) - 1
        [reply] = host.handle(
            [
                MaskRequest(
                    session_id=name,
                    epoch=1,
                    ticket=first,
                    base_len=0,
                    prefix_hash=EMPTY_HASH,
                    chain=list(ids[:last]),
                    num_rows=last - first + 1,
                )
            ]
        )
        if not isinstance(reply, Masks):
            raise AssertionError(f"no masks for {request.grammar}: {reply}")
        size = reply.row_bytes
        masks += [reply.rows[i * size : (i + 1) * size] for i in range(reply.num_valid_rows)]
        if reply.num_valid_rows < last - first + 1:
            break
    host.handle([GrammarClose(session_id=name, epoch=1)])
    return masks + [bytes(size)] * (len(ids) - len(masks))  # nothing is allowed after an end
