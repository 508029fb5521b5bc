"""`python -m deployments.metrics --output FILE`: writes the reference page of all metrics."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from deployments.constraint.meters import ConstraintMeters
from deployments.engine.meters import EngineMeters
from deployments.engine.swap_meters import SwapMeters
from deployments.ingress.charges import Charges
from deployments.ingress.loss_metrics import LossMetrics
from deployments.ingress.metrics import RequestMetrics
from deployments.ingress.planning_metrics import PlanningMetrics
from deployments.serve.instruments import Declaration, Meters
from models.arguments import output_file
from router.gains import PlannerStats
from router.remote.losses import Losses

COMMAND = "python -m deployments.metrics --output deployments/docs/metrics.md"
_HEAD = f"""\
# Metrics

`{COMMAND}` writes this page.

A router's `GET /metrics` prints all of them in Prometheus' format, with the label `replica` where
another process made them. Names that begin with `vllm:` mean what they mean in vLLM. Ray's own
export has `ray_` in front and `_` for each colon: `vllm:num_requests_running` is
`ray_vllm_num_requests_running` there.
"""
_COLUMNS = "| metric | kind | further labels | measures |\n|---|---|---|---|\n"
# Labels that all metrics of a process have.
_PROCESSES: dict[str, tuple[str, ...]] = {
    "Router": ("model_name",),
    "Target and Draft": ("model_name", "engine"),
    "Draft": ("model_name", "engine"),
    "Constraint": ("model_name", "engine"),
}


def declared() -> dict[str, list[Declaration]]:
    """Return the declarations of all metrics, by the process that has them."""
    found: dict[str, list[Declaration]] = {process: [] for process in _PROCESSES}
    router, engine, draft, constraint = (
        Meters(dict.fromkeys(labels, ""), found[process].append)
        for process, labels in _PROCESSES.items()
    )
    RequestMetrics(router)
    Charges(router)
    LossMetrics(router, Losses())
    PlanningMetrics(router, PlannerStats(), dict, {})
    EngineMeters(engine)
    SwapMeters(draft)
    ConstraintMeters(constraint)
    return found


def metrics_page() -> str:
    """Return the page as Markdown: name, kind, labels and meaning of every metric."""
    parts = [_HEAD]
    for process, metrics in declared().items():
        fixed = _PROCESSES[process]
        rows = "".join(_row(one, one.labels[len(fixed) :]) for one in metrics)
        common = " and ".join(f"`{label}`" for label in fixed)
        parts.append(f"## {process}\n\nAll have {common}.\n\n{_COLUMNS}{rows}")
    return "\n".join(parts)


def _row(metric: Declaration, labels: Sequence[str]) -> str:
    return f"| `{metric.printed}` | {metric.kind} | {', '.join(labels)} | {metric.text} |\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Write the page to a file, or to the standard output."""
    parser = argparse.ArgumentParser(prog="python -m deployments.metrics", description=__doc__)
    parser.add_argument("--output", type=output_file, help="a file to write; by default the output")
    output = parser.parse_args(argv).output
    if output is None:
        sys.stdout.write(metrics_page())
    else:
        output.write_text(metrics_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
