"""All experiments by name."""

from __future__ import annotations

from collections.abc import Mapping

from loadtest.experiments.drafting import BATCHES, HEADS, KINDS, SPEED, TRANSFORMERS
from loadtest.experiments.gaps import GAPS
from loadtest.experiments.grammars import CONSTRAINED, FIRST_TOKEN, FORCED
from loadtest.experiments.passes import PASSES, QUANTIZED, QUANTIZED_PASSES
from loadtest.frame.experiment import Experiment

EXPERIMENTS: Mapping[str, Experiment] = {
    "speed": SPEED,
    "batches": BATCHES,
    "transformers": TRANSFORMERS,
    "passes": PASSES,
    "gaps": GAPS,
    "quantized": QUANTIZED,
    "quantized-passes": QUANTIZED_PASSES,
    "heads": HEADS,
    "kinds": KINDS,
    "forced": FORCED,
    "constrained": CONSTRAINED,
    "first-token": FIRST_TOKEN,
}
