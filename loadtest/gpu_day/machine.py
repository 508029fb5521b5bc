"""Describes the cards, their drivers, and the speed of their memory."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import torch

from loadtest.frame.passes import copied_bytes_per_ms
from loadtest.gpu_day.terms import Terms

_QUERY_TIMEOUT_S = 30.0


def cards(terms: Terms) -> dict[str, Any]:
    """Name, memory and copy speed of each card, the driver, and which reach each other."""
    if not terms.is_gpu:
        speed = copied_bytes_per_ms(torch.device(terms.device))
        return {"cards": [{"name": terms.device, "gb_per_s": round(speed / 1e6, 1)}]}
    found = [_card(index) for index in range(terms.num_cards())]
    return {
        "torch_cuda": torch.version.cuda,
        "driver": _driver(),
        "cards": found,
        "peers": [
            [a, b]
            for a in range(len(found))
            for b in range(len(found))
            if a != b and torch.cuda.can_device_access_peer(a, b)
        ],
    }


def _card(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(total / 2**30, 1),
        "free_gib": round(free / 2**30, 1),
        "processors": properties.multi_processor_count,
        "gb_per_s": round(copied_bytes_per_ms(torch.device("cuda", index)) / 1e6, 1),
    }


def _driver() -> str | None:
    """Return the driver's version if its tool is installed."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    asked = subprocess.run(
        [tool, "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=_QUERY_TIMEOUT_S,
        check=False,
    )
    return asked.stdout.split("\n", maxsplit=1)[0].strip() or None
