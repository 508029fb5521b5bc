"""Every drafter there is, by name, the preferred one first. A new one is one line here."""

from __future__ import annotations

from router.drafters.draft_model import DRAFT_MODEL
from router.drafters.kind import DrafterKind
from router.drafters.ngram import NGRAM
from router.drafters.repeats.suffix import SUFFIX

DRAFTERS: dict[str, DrafterKind] = {kind.name: kind for kind in (DRAFT_MODEL, SUFFIX, NGRAM)}
