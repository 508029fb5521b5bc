"""Every kernel compiles for every generation of GPUs that is served, without spilling."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_kernels_for_all_architectures() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.gpu.compiled_kernels"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=590,
    )
    assert done.returncode == 0, done.stderr
    usage = json.loads(done.stdout)
    assert len(usage) == 17
    for name, by_architecture in usage.items():
        older = set() if name == "round" else {"80"}  # A100 has no float8
        assert set(by_architecture) == older | {"89", "90", "100"}, name
        for architecture, used in by_architecture.items():
            most = 255 if "attention" in name else 160 if "product" in name else 128
            assert used["REG"] <= most, (name, architecture, used)
            assert used["STACK"] == used["LOCAL"] == 0, (name, architecture, used)
            assert used["SHARED"] <= 99 * 1024, (name, architecture, used)
