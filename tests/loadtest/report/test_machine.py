import json
import platform

import torch

from loadtest.report.machine import describe_machine


def test_machine_names_what_a_measurement_depends_on() -> None:
    machine = json.loads(json.dumps(describe_machine()))
    assert set(machine) == {
        *("date", "processor", "cores", "memory_gib", "python", "torch", "ray", "transformers")
    }
    assert all(machine.values())
    assert machine["torch"] == torch.__version__
    assert machine["python"] == platform.python_version()
