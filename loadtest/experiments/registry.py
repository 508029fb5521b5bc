"""All experiments by name."""

from __future__ import annotations

from collections.abc import Mapping

from loadtest.experiments.drafting import BATCHES, HEADS, KINDS, SPEED, TRANSFORMERS
from loadtest.experiments.gaps import GAPS
from loadtest.experiments.grammars import CONSTRAINED, FIRST_TOKEN, FORCED
from loadtest.experiments.llama import LLAMA_349M, LLAMA_DEMO, LLAMA_HTTP, LLAMA_SMOLLM2
from loadtest.experiments.overhead import FIRST_TEXT, OVERHEAD
from loadtest.experiments.passes import PASSES, QUANTIZED, QUANTIZED_PASSES
from loadtest.frame.experiment import Experiment

EXPERIMENTS: Mapping[str, Experiment] = {
    "speed": SPEED,
    "batches": BATCHES,
    "transformers": TRANSFORMERS,
    "llama-demo": LLAMA_DEMO,
    "llama-349m": LLAMA_349M,
    "llama-smollm2": LLAMA_SMOLLM2,
    "llama-http": LLAMA_HTTP,
    "overhead": OVERHEAD,
    "first-text": FIRST_TEXT,
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
