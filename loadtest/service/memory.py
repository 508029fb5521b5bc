"""Reads the memory of every process of a served config, again and again, and says how it grew.

Memory is checked by private pages (USS, and their swapped part), because a leak is private memory.
PSS and RSS also move when another process maps or leaves shared pages. The sum of PSS checks all
processes together; it counts shared pages once, so growth of shared memory shows there. Ray's own
processes are reported and not checked. Growth compares the last quarter's median with that of the
first quarter after the warm-up. Medians ignore the spikes of single samples, and the difference is
memory that is held, not an extrapolation. A lasting step counts in full at any place. The
least-squares slope is reported next to it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import psutil

from loadtest.service.parts import KINDS

# The service consists of these; Serve's proxy and controller and Ray's daemons are Ray's own.
OURS = tuple(kind for kind in KINDS if kind not in ("controller", "proxy"))
TOGETHER = "ours together"
RAY_TOGETHER = "Ray's together"
# The key is a word of the command line, first match wins; Ray sets the titles of its workers.
_RAY_KINDS = {
    "gcs_server": "gcs",
    "raylet/raylet": "raylet",
    "ray::DashboardAgent": "dashboard-agent",
    "ray::RuntimeEnvAgent": "runtime-env-agent",
    "log_monitor.py": "log-monitor",
    "autoscaler/_private/monitor.py": "autoscaler-monitor",
    "ray::IDLE": "idle-worker",
    "dashboard": "dashboard",
}
_DRIVER = "serve-run"
MIB = 1 << 20
_LEAST_SAMPLES = 3  # in a quarter; fewer have no median worth the name


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a process: private pages and pages shared with others counted each in its way."""

    private: int = 0  # with what of it was swapped out
    proportional: int = 0  # a page shared by n processes counts 1/n
    resident: int = 0  # a shared page counts in full

    def __add__(self, other: Memory) -> Memory:
        return Memory(
            self.private + other.private,
            self.proportional + other.proportional,
            self.resident + other.resident,
        )


@dataclass(kw_only=True)
class Series:
    """Samples of one process, or of several together. Seconds since the load began; bytes.

    Attributes:
        kind: the part the process plays.
        pid: of the process; 0 for the sum of several.
        is_ours: whether its memory is checked; False: Ray's own, only reported.
    """

    kind: str
    pid: int
    is_ours: bool
    at_s: list[float] = field(default_factory=list)
    private: list[int] = field(default_factory=list)
    proportional: list[int] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)

    def add(self, at_s: float, memory: Memory) -> None:
        """Append a sample."""
        self.at_s.append(at_s)
        self.private.append(memory.private)
        self.proportional.append(memory.proportional)
        self.resident.append(memory.resident)

    @property
    def checked(self) -> list[int]:
        """The checked values: private memory of a process, proportional memory of several."""
        return self.private if self.pid else self.proportional


class MemoryWatch:
    """Samples of all processes since the start.

    Args:
        parts: living processes by the part they play.
        tree: all living processes of the service, its root first.
    """

    def __init__(
        self,
        parts: Callable[[], dict[str, list[psutil.Process]]],
        tree: Callable[[], Iterable[psutil.Process]],
    ) -> None:
        self._parts = parts
        self._tree = tree
        self._together = Series(kind=TOGETHER, pid=0, is_ours=True)
        self._ray_together = Series(kind=RAY_TOGETHER, pid=0, is_ours=False)
        self._series: dict[psutil.Process, Series] = {}

    @property
    def series(self) -> list[Series]:
        """One per process, ours first, then the sums."""
        ours_first = sorted(self._series.values(), key=lambda s: (not s.is_ours, s.kind, s.pid))
        return [*ours_first, self._together, self._ray_together]

    def sample(self, at_s: float) -> int:
        """Read all processes; returns bytes of all together (PSS)."""
        kinds = {process: kind for kind, found in self._parts().items() for process in found}
        sums = {True: Memory(), False: Memory()}
        for index, process in enumerate(self._tree()):
            try:
                memory = _read(process)
                kind = kinds.get(process) or (_DRIVER if index == 0 else _ray_kind(process))
            except psutil.Error:
                continue  # it has ended just now
            is_ours = kind in OURS
            series = self._series.setdefault(
                process, Series(kind=kind, pid=process.pid, is_ours=is_ours)
            )
            series.add(at_s, memory)
            sums[is_ours] += memory
        self._together.add(at_s, sums[True])
        self._ray_together.add(at_s, sums[False])
        return sums[True].proportional + sums[False].proportional


def _read(process: psutil.Process) -> Memory:
    read = process.memory_full_info()
    return Memory(read.uss + read.swap, read.pss + read.swap, read.rss)


def _ray_kind(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    return next((kind for word, kind in _RAY_KINDS.items() if word in command), "other")


def growth(one: Series, from_s: float, every: Series) -> dict[str, float]:
    """Return how a series grew from the end of the warm-up to the last sample.

    Args:
        one: of a process, or a sum.
        from_s: end of the warm-up.
        every: a sum, which has every sample.

    Returns:
        `growth`, the share by which the median of the last quarter of that time is above that of
        the first; both medians, and the slope.

    Raises:
        ValueError: it cannot be told; the message says why.
    """
    sampled = [at_s for at_s in every.at_s if at_s >= from_s]
    if not sampled:
        raise ValueError("no sample after the warm-up")
    if one.at_s[0] > sampled[0]:
        raise ValueError(f"came {one.at_s[0]:.0f} s after the start")
    if one.at_s[-1] < sampled[-1]:
        raise ValueError(f"ended {one.at_s[-1]:.0f} s after the start")
    quarter_s = (sampled[-1] - sampled[0]) / 4
    kept = [(t, v) for t, v in zip(one.at_s, one.checked, strict=True) if t >= sampled[0]]
    early = [v for t, v in kept if t <= sampled[0] + quarter_s]
    late = [v for t, v in kept if t >= sampled[-1] - quarter_s]
    least = min(len(early), len(late))
    if least < _LEAST_SAMPLES:
        raise ValueError(f"{least} samples in a quarter, at least {_LEAST_SAMPLES} are needed")
    before, after = statistics.median(early), statistics.median(late)
    return {
        "growth": (after - before) / max(before, 1),  # a sum over no process is 0
        "early_mib": before / MIB,
        "late_mib": after / MIB,
        "slope_mib_per_hour": statistics.linear_regression(*zip(*kept, strict=True)).slope
        * 3600
        / MIB,
    }


def by_minute(at_s: Sequence[float], values: Sequence[float], digits: int) -> dict[str, object]:
    """Return median and greatest of each minute that has samples, and the last of all."""
    minutes: dict[int, list[float]] = {}
    for time_s, value in zip(at_s, values, strict=False):
        minutes.setdefault(int(time_s // 60), []).append(value)
    return {
        "minute": list(minutes),
        "p50": [round(statistics.median(found), digits) for found in minutes.values()],
        "max": [round(max(found), digits) for found in minutes.values()],
        "last": round(values[-1], digits) if values else None,
    }
