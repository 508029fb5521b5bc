from __future__ import annotations

import mmap

from deployments.constraint.memory import MemoryGuard, data_bytes, resident_bytes

MB = 1 << 20


class Host:
    """Cached grammars of 10 MB each and grammars with sessions of 20 MB each, above 100 MB."""

    def __init__(self) -> None:
        self.cached = self.open = 0
        self.now = 0.0

    def measure(self) -> int:
        return (100 + 10 * self.cached + 20 * self.open) * MB

    def evict(self) -> int:
        gone = (self.cached + 1) // 2
        self.cached -= gone
        return gone

    def forget(self) -> int:
        gone = min(self.open, 1)
        self.open -= gone
        return gone

    def guard(self) -> MemoryGuard:
        return MemoryGuard(self, 500 * MB, 32 * MB, self.measure, lambda: self.now)


def test_idle_grammars_go_at_half_of_what_is_left() -> None:
    host = Host()
    guard = host.guard()
    for cached, left in ((20, 20), (21, 10)):
        host.cached = cached
        host.now += 1.0
        guard.look()
        assert host.cached == left


def test_sessions_go_only_when_nothing_else_makes_room() -> None:
    host = Host()
    guard = host.guard()
    host.cached, host.open = 8, 15
    host.now += 1.0
    guard.look()
    assert (host.cached, host.open) == (0, 15)
    host.open = 18
    host.now += 1.0
    guard.look()
    assert host.open == 15  # 300 MB of 400


def test_looks_are_rare() -> None:
    host = Host()
    guard = host.guard()
    host.cached = 40
    guard.look()
    assert host.cached == 40


def test_a_compile_needs_room() -> None:
    host = Host()
    guard = host.guard()
    host.cached = 39
    assert guard.refusal() == ""
    assert host.cached < 21
    host.open = 15
    assert "400 MB of this process" in guard.refusal()
    assert "500 MB (memory_limit_mb)" in guard.refusal()
    assert host.open == 15  # nobody's session goes for another's


def test_memory_of_this_process_is_known() -> None:
    before = data_bytes()
    # Pages of their own: a malloc may find room in what earlier tests freed.
    with mmap.mmap(-1, 64 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as big:
        big.write(b"a" * (64 * MB))
        assert data_bytes() - before > 48 * MB
        assert resident_bytes() > 64 * MB
