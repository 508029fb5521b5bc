"""Two processes for the whole suite, one of which begins with the tests that start Ray.

Pytest gives a process one module after the other. Those that start Ray are one unit, because one
cluster at a time is what two cores bear; it is the longest, so it is the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from xdist.scheduler import LoadFileScheduling

_NUM_PROCESSES = 2
WITH_RAY = ("tests/integration/cluster/", "tests/integration/served/")  # all tests marked `ray`
# Fixtures that hold a service for many tests.
HELD = ("bare_serve", "production", "demo", "deployed")
_AT_ITS_END = "demo_at_its_end"  # whoever uses this ends one
_RAY = "ray"


class OneRay(LoadFileScheduling):
    """Gives a process modules as they come; those with Ray go to one process, one by one."""

    def _split_scope(self, nodeid: str) -> str:
        return _RAY if nodeid.startswith(WITH_RAY) else super()._split_scope(nodeid)


def use_both(config: pytest.Config) -> None:
    """Have the whole suite run in two processes, unless the command says how many."""
    option = config.option
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    is_one_process = hasattr(config, "workerinput") or option.usepdb or option.collectonly
    if is_whole and option.numprocesses is None and not is_one_process:
        option.numprocesses = _NUM_PROCESSES
    option.loadscopereorder = False  # `order` knows better than the number of tests


def fixtures(item: pytest.Item | None) -> Sequence[str]:
    """The names of all fixtures that a test uses, also by others."""
    return getattr(item, "fixturenames", ())


def service_of(item: pytest.Item | None) -> list[str]:
    """The names in `HELD` that a test uses."""
    return [name for name in HELD if name in fixtures(item)]


def order(items: list[pytest.Item]) -> None:
    """Put tests with Ray first, those of one service side by side, then modules with slow tests.

    A long module that begins last would be waited for alone.
    """
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))

    def rank(item: pytest.Item) -> tuple[bool, list[str], bool, int]:
        has_ray = item.nodeid.startswith(WITH_RAY)
        ends_it = _AT_ITS_END in fixtures(item)
        return not has_ray, service_of(item), ends_it, 0 if has_ray else -slow[item.path]

    items.sort(key=rank)
