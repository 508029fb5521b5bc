"""All experiments by name."""

from __future__ import annotations

from collections.abc import Mapping

from loadtest.experiments.acceptance import ACCEPTANCE, DRAFT_SAMPLING
from loadtest.experiments.drafting import HEADS, KINDS, KINDS_HEADS, SPEED
from loadtest.experiments.grammars import CONSTRAINED, FIRST_TOKEN, FORCED
from loadtest.experiments.scenarios import SCENARIOS
from loadtest.experiments.study import PARTS, STRUCTURE, STUDY
from loadtest.frame.experiment import Experiment

EXPERIMENTS: Mapping[str, Experiment] = {
    "speed": SPEED,
    "heads": HEADS,
    "kinds": KINDS,
    "kinds-heads": KINDS_HEADS,
    "forced": FORCED,
    "constrained": CONSTRAINED,
    "first-token": FIRST_TOKEN,
    "study": STUDY,
    "study-structure": STRUCTURE,
    "study-parts": PARTS,
    "acceptance": ACCEPTANCE,
    "draft-sampling": DRAFT_SAMPLING,
    **SCENARIOS,
}
