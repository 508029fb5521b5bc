"""A record's machine: only settings that the system tells are told."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from loadtest.report.machine import describe_machine, groups_sessions
from loadtest.service.sessions import let_others_go_first


@pytest.mark.parametrize(("said", "expected"), [("1\n", True), ("0\n", False), (None, None)])
def test_groups_of_sessions_are_told(
    tmp_path: Path, said: str | None, expected: bool | None
) -> None:
    setting = tmp_path / "sched_autogroup_enabled"
    if said is not None:
        setting.write_text(said, encoding="utf-8")
    assert groups_sessions(setting) is expected


def test_a_record_has_them() -> None:
    assert describe_machine()["autogroup"] is groups_sessions()


def test_a_session_lets_others_go_first() -> None:
    group = Path("/proc/self/autogroup")
    if not group.exists():
        pytest.skip("this system groups no sessions")
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        let_others_go_first(process.pid)
        assert "nice 19" in Path(f"/proc/{process.pid}/autogroup").read_text(encoding="utf-8")
        process.kill()
