"""An experiment on vLLM's layers under our engine, where vLLM is installed."""

from __future__ import annotations

from loadtest.frame.claims import Goal
from loadtest.frame.experiment import Experiment
from loadtest.frame.ways import Way
from loadtest.frame.workloads import demo

_BY_VLLM = {"engine": "vllm"}

VLLM = Experiment(
    question="what does our loop around vLLM's layers cost, next to vLLM's own and our own engine",
    workloads={"story": demo("story")},
    ways={
        "vllm": Way(k=0, at="vllm", texts=""),
        "our loop": Way(k=0, target=_BY_VLLM, texts=""),
        "our engine": Way(k=0, texts=""),
        # Each with the draft model, k=5: vLLM's own speculation, ours around its layers for both
        # models, ours with our engine for the draft, and our engine for both.
        "vllm, drafts": Way(k=5, at="vllm", texts=""),
        "our loop, drafts": Way(k=5, target=_BY_VLLM, draft=_BY_VLLM, texts=""),
        "our loop, own draft": Way(k=5, target=_BY_VLLM, texts=""),
        "our engine, drafts": Way(k=5, texts=""),
    },
    batches=(1, 8),
    measures=("tokens_per_s",),
    goals=(
        Goal(way="our loop", to="vllm", at_least=0.95),
        Goal(way="our loop, drafts", to="vllm, drafts", at_least=0.95),
    ),
    repeats=5,
)
