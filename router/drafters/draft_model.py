"""The draft model as a drafter: an engine of its own, leased for each session."""

from __future__ import annotations

from router.drafters.kind import DrafterContext, DrafterKind
from router.ports import DraftCost, DrafterTraits
from router.remote.draft import RemoteDrafter

POOL = "draft"  # the deployment, and its section in the config


def _make(context: DrafterContext) -> RemoteDrafter:
    drafter = RemoteDrafter(context.engine(POOL), context.limits, context.committed)
    drafter.start()
    return drafter


DRAFT_MODEL = DrafterKind(
    traits=DrafterTraits(
        name="draft_model",
        cost=DraftCost.REMOTE,
        # Text under a grammar is mostly copied or forced, free text at high temperature mostly not.
        prior_acceptance={"structured": 0.85, "free": 0.7, "creative": 0.5},
    ),
    label="the draft model",
    make=_make,
    uses_pool=POOL,
    needs="a draft section",
    absence="is not there, this deployment has no draft model",
)
