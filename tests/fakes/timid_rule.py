"""A verification rule added as any other: `coupled`, but it accepts one draft token at most."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from models.protocol.messages import Sampling
from models.protocol.rules import VerificationRule
from models.sampling.verification import VerifiedDraft, draw_ids

TIMID = VerificationRule(
    name="timid",
    about="for tests",
    function="tests.fakes.timid_rule:verify_timidly",
)


def verify_timidly(scores: Tensor, drafts: Sequence[VerifiedDraft]) -> list[list[int]]:
    texts = []
    for each in drafts:
        rows = range(min(2, each.num_rows))
        chosen = [each.first_row + row for row in rows]
        sampling = Sampling(seed=each.seed)
        positions = [each.position + row for row in rows]
        tokens = draw_ids(scores[chosen], [sampling] * len(rows), positions).tolist()
        texts.append(tokens if tokens[0] == each.draft[0] else tokens[:1])
    return texts
