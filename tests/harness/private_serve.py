"""Ray Serve in this process's own cluster, for tests that speak to deployments directly."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray import serve

from loadtest.report.machine import ROOT
from loadtest.service.served import private_environment


@contextlib.contextmanager
def private_serve(num_cpus: int, *also_importable: Path) -> Iterator[None]:
    """Serve without an HTTP proxy until the block ends; nobody else's Ray is joined."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="or") as folder:
        for name, value in private_environment(Path(folder)).items():
            patch.setenv(name, value)
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        patch.setenv("RAY_worker_niceness", "0")  # else a busy core beside it stalls its ranks
        given = os.environ.get("PYTHONPATH", "")  # an engine that is installed beside the others
        importable = [*map(str, (ROOT, ROOT / "tests", *also_importable)), given]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, importable)))
        ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=100 * 1024 * 1024,
        )
        try:
            serve.start(proxy_location="Disabled")
            yield
        finally:
            serve.shutdown()
            ray.shutdown()
        with warnings.catch_warnings():  # Ray leaves its daemons' Popen objects to the collector
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
