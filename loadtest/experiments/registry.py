"""All experiments and trials by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from loadtest.clients.trial import CLIENT_CHECKS
from loadtest.experiments.acceptance import ACCEPTANCE, DRAFT_SAMPLING
from loadtest.experiments.ahead import AHEAD, AHEAD_SIMULATED
from loadtest.experiments.alerts import ALERTS
from loadtest.experiments.crowds import HOSTILE, OVERLOAD, SOAK
from loadtest.experiments.drafting import HEADS, KINDS, KINDS_HEADS, SPEED
from loadtest.experiments.gaps import GAPS
from loadtest.experiments.grammars import CONSTRAINED, FIRST_TOKEN, FORCED
from loadtest.experiments.overhead import FIRST_TEXT, OVERHEAD
from loadtest.experiments.passes import DRAWS, QUANTIZED, QUANTIZED_PASSES
from loadtest.experiments.peers import LLAMA_349M, LLAMA_DEMO, LLAMA_SMOLLM2, VLLM
from loadtest.experiments.rehearse import REHEARSE
from loadtest.experiments.rolling import ROLLING
from loadtest.experiments.same import SAME
from loadtest.experiments.scenarios import SCENARIOS
from loadtest.experiments.study import PARTS, STRUCTURE, STUDY
from loadtest.experiments.tenants import TENANTS
from loadtest.experiments.trials import FAULTS, SCALING
from loadtest.experiments.turns import TURNS
from loadtest.frame.experiment import Experiment
from loadtest.frame.stages import Models, Opener
from loadtest.fuzz.trial import FUZZ
from loadtest.matrix.trial import MATRIX
from loadtest.simulate.planned import SIMULATED
from loadtest.trial.trial import Trial

EXPERIMENTS: Mapping[str, Experiment] = {
    **AHEAD,
    "ahead-simulated": AHEAD_SIMULATED,
    "speed": SPEED,
    "llama-demo": LLAMA_DEMO,
    "llama-349m": LLAMA_349M,
    "llama-smollm2": LLAMA_SMOLLM2,
    "vllm": VLLM,
    "turns": TURNS,
    "overhead": OVERHEAD,
    "first-text": FIRST_TEXT,
    "gaps": GAPS,
    "quantized": QUANTIZED,
    "quantized-passes": QUANTIZED_PASSES,
    "draws": DRAWS,
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
    "simulated": SIMULATED,
}

TRIALS: dict[str, Trial] = {
    "faults": FAULTS,
    "rolling": ROLLING,
    "rehearse": REHEARSE,
    "alerts": ALERTS,
    "scaling": SCALING,
    "soak": SOAK,
    "overload": OVERLOAD,
    "hostile": HOSTILE,
    "tenants": TENANTS,
    "same": SAME,
    "fuzz": FUZZ,
    "matrix": MATRIX,
    "clients": CLIENT_CHECKS,
}


def _opener(module: str, name: str) -> Opener:
    """Return what opens a stage; its module is loaded when it is opened."""

    def opened(models: Models) -> Any:
        return getattr(import_module(f"loadtest.frame.{module}"), name)(models)

    return opened


STAGES: Mapping[str, Opener] = {
    "engine": _opener("stages", "EngineStage"),
    "link": _opener("links", "LinkStage"),
    "http": _opener("services", "ServiceStage"),
    "bare": _opener("references", "BareStage"),
    "transformers": _opener("references", "TransformersStage"),
    **({"vllm": _opener("references", "VllmStage")} if find_spec("vllm") else {}),
}
