"""Engines over the tiny checkpoint that a test asks, and that must be empty at its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from models.engine.draft import DraftEngine
from models.engine.target import TargetEngine
from models.protocol.messages import Sampling
from tests.cases.target import GREEDY
from tests.fakes.engines import EOS_ID, make_draft, make_target
from tests.models.engine.asked import Asked, AskedDraft, AskedTarget, DraftOf, TargetOf


@pytest.fixture
def asked() -> Iterator[list[Asked]]:
    made: list[Asked] = []
    yield made
    for each in reversed(made):
        each.end()


@pytest.fixture
def target_of(asked: list[Asked]) -> TargetOf:
    def make(
        engine: TargetEngine | None = None, *, sampling: Sampling = GREEDY, **limits: Any
    ) -> AskedTarget:
        target = AskedTarget(engine or make_target(**limits), sampling=sampling, eos_ids=[EOS_ID])
        asked.append(target)
        return target

    return make


@pytest.fixture
def draft_of(asked: list[Asked]) -> DraftOf:
    """Return what makes draft models: the target's own model, if no noise is given."""

    def make(
        engine: DraftEngine | None = None,
        *,
        sampling: Sampling = GREEDY,
        noise: float = 0.0,
        **limits: Any,
    ) -> AskedDraft:
        draft = AskedDraft(engine or make_draft(noise=noise, **limits), sampling=sampling)
        asked.append(draft)
        return draft

    return make
