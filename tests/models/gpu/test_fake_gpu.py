"""No architecture mixes devices, copies unseen or looks at a value, in any back-end of a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cases.models.architectures import CONFIGS

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_architectures_and_draws_on_a_gpu_without_values() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.gpu.fake_gpu"],
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "cpu" in found.pop("two devices"), "it must refuse tensors of two devices"
    assert "DataDependent" in found.pop("a look"), "it must refuse to show a value"
    assert set(CONFIGS) == {name.split(":")[0] for name in found if ":" in name}
    assert {name.split(": ")[1] for name in found if ":" in name} == {
        "gathered",
        "paged",
        "merged",
        "kernels",
        "int8",
    }
    wrong = {name: error for name, error in found.items() if error}
    assert not wrong, "\n\n".join(f"{name}\n{error}" for name, error in wrong.items())
