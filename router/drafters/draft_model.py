"""Draft models as drafters: engines of their own, leased for each session.

A deployment may have several side by side: one in its `draft` section, further ones under names of
their own. A session has one of them, see `draft_choice.py`.
"""

from __future__ import annotations

from router.drafters.kind import DrafterContext, DrafterKind
from router.ports import DraftCost, DrafterTraits
from router.remote.draft import RemoteDrafter

POOL = "draft"  # the pool of the config's `draft` section; those of others have their names


def draft_model(name: str, pool: str, label: str) -> DrafterKind:
    """Return a draft model as a drafter.

    Args:
        name: in requests, answers, metrics and config.
        pool: its engines.
        label: its name in sentences.
    """

    def make(context: DrafterContext) -> RemoteDrafter:
        drafter = RemoteDrafter(
            context.engine(pool),
            context.limits,
            context.committed,
            num_branches=context.num_branches,
        )
        drafter.start()
        return drafter

    return DrafterKind(
        traits=DrafterTraits(
            name=name,
            cost=DraftCost.REMOTE,
            # Text under a grammar is mostly copied or forced, free text at high temperature mostly
            # not.
            prior_acceptance={"structured": 0.85, "free": 0.7, "creative": 0.5},
        ),
        label=label,
        make=make,
        uses_pool=pool,
        needs="a draft section",
        absence="is not there, this deployment has no draft model",
    )


DRAFT_MODEL = draft_model("draft_model", POOL, "the draft model")
