"""The day, the machine and the versions that a measurement was made with, in the same words in
every file.

Reads only what the system and the installed packages say of themselves; imports none of them.
"""

from __future__ import annotations

import contextlib
import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

_PACKAGES = ("torch", "ray", "transformers")
_GIB = 1 << 30
_AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
ROOT = Path(__file__).parents[2]  # root of the repository: configs and results are below it


def describe_machine() -> dict[str, object]:
    """Today (UTC), processor, cores, memory (GiB), groups of sessions, versions; ready for JSON."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "autogroup": groups_sessions(),
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
    }


def groups_sessions(setting: Path = _AUTOGROUP) -> bool | None:
    """Return whether Linux shares cores among sessions (sched(7), autogroup); None: not told.

    Where it does, a client in a session of its own may wait for a core for seconds. Such a gap is
    none of the service's. A container has no such groups.
    """
    with contextlib.suppress(OSError):
        return setting.read_text(encoding="utf-8").strip() == "1"
    return None


def _processor() -> str:
    """Return the processor's name if the system has it, else the architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", maxsplit=1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    """Physical memory; None where the system does not tell."""
    try:
        num_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    return round(num_bytes / _GIB, 1)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
