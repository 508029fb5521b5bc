"""Every drafter there is, by name, the preferred one first. A new one is one line here."""

from __future__ import annotations

from collections.abc import Collection

from router.drafters.draft_model import DRAFT_MODEL, POOL, draft_model
from router.drafters.kind import DrafterKind
from router.drafters.ngram import NGRAM
from router.drafters.repeats.suffix import SUFFIX

DRAFTERS: dict[str, DrafterKind] = {kind.name: kind for kind in (DRAFT_MODEL, SUFFIX, NGRAM)}


def drafters_of(pools: Collection[str]) -> dict[str, DrafterKind]:
    """Return all drafters by name for these pools.

    Each further pool is a draft model of its name, which comes behind the first draft model.
    """
    models = [DRAFT_MODEL]
    models += [draft_model(pool, pool, f"the draft {pool}") for pool in pools if pool != POOL]
    return {kind.name: kind for kind in (*models, *DRAFTERS.values())}
