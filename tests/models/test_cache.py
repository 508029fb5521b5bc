"""Folders of the cache are there whole or not at all, and are made once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from models.cache import make_once, models_cache, refuse_full_disk, sha256_of

ROOT = Path(__file__).parents[3]


def fill(folder: Path) -> None:
    (folder / "a").write_text("one")


def test_the_cache_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models_cache() == tmp_path / "outrider" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models_cache() == tmp_path / ".cache" / "outrider" / "models"


def test_it_is_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "model"
    assert make_once(folder, fill)
    assert (folder / "a").read_text() == "one"
    assert not make_once(folder, lambda part: pytest.fail("made again"))


def test_of_many_who_ask_at_once_one_makes_it(tmp_path: Path) -> None:
    made: list[bool] = []
    threads = [
        threading.Thread(target=lambda: made.append(make_once(tmp_path / "model", slow_fill)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 5 + [True]


def slow_fill(folder: Path) -> None:
    time.sleep(0.1)
    fill(folder)


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        fill(folder)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        make_once(tmp_path / "model", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".model.lock"]


def test_what_a_killed_run_left_does_not_count_and_goes(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from models.cache import make_once\n"
        "def make(folder):\n"
        "    (folder / 'a').write_text('half'); print('begun', flush=True); time.sleep(60)\n"
        "make_once(Path(sys.argv[1]), make)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "model")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"begun\n"
        with pytest.raises(ValueError, match=r"has been making .*model for more than 0.2 s"):
            make_once(tmp_path / "model", fill, wait_s=0.2)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert not (tmp_path / "model").exists()
    assert make_once(tmp_path / "model", fill, wait_s=10)
    assert (tmp_path / "model" / "a").read_text() == "one"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".model.lock", "model"]


def test_a_disk_that_cannot_take_it_is_named(tmp_path: Path) -> None:
    refuse_full_disk(tmp_path, 1)
    with pytest.raises(ValueError, match=r"1,000,000,000,000 MB are needed in .* MB are free"):
        refuse_full_disk(tmp_path, 10**18)

    def on_full_disk(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ValueError, match=r"model cannot be made: the disk is full; XDG_CACHE_HOME"):
        make_once(tmp_path / "model", on_full_disk)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be made: .*File exists"):
        make_once(tmp_path / "file" / "model", fill)


def test_a_sum_is_that_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_of(tmp_path / "a") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
