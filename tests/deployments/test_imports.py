"""Programs that start often, or where there is no Ray, load nothing that they do not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_SPANS = (
    "from deployments.ingress.service import request_spans; assert not request_spans('', 'x')"
)


@pytest.mark.parametrize(
    ("statement", "unused"),
    [
        (
            "import deployments.constraint.child",
            {"torch", "transformers", "ray", "zmq", "numpy", "asyncio"},
        ),
        ("import deployments.engine.rank, deployments.serve.private", {"ray.serve"}),
        ("import deployments.llm", {"ray", "zmq"}),
        (NO_SPANS, {"opentelemetry.sdk", "opentelemetry.exporter"}),
    ],
    ids=["child", "rank", "llm", "no spans"],
)
def test_what_is_not_used_is_not_loaded(statement: str, unused: set[str]) -> None:
    code = f"{statement}; import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = done.stdout.split()
    assert statement.split()[1].rstrip(",") in loaded
    assert unused.isdisjoint(loaded)
