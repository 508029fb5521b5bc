"""A package as users install theirs, with rewards that are of use and rewards that do harm."""

from __future__ import annotations

from pathlib import Path

_MODULE = '''
import ctypes, os, signal, subprocess, sys, time
from dataclasses import dataclass
from models.rewards.reward import Scored


class Vowels:
    def __init__(self, least):
        self.least = least

    def score(self, text, lookahead, is_end):
        share = min(sum(letter in "aeiou" for letter in text + lookahead) / self.least, 1.0)
        return Scored(share, share == 1.0)


def vowels(parameters):
    return Vowels(parameters["least"])


class Harm:
    """Does `do` at each score."""

    def __init__(self, do):
        self.do = do

    def score(self, text, lookahead, is_end):
        return self.do(text) or Scored(0.5, False)


def spin(text):
    while True:
        pass


def take_memory(text):
    held = []
    while True:
        held.append(bytearray(1 << 24))


def close_all(text):
    os.closerange(0, 256)
    time.sleep(3600)


def leave_a_child(text):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    with open(text, "w") as file:
        file.write(str(process.pid))


def ignore_signals(text):
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3600)


def note_process(text):
    with open(text, "a") as file:
        file.write(f"{os.getpid()} ")


DEEDS = {
    "note": note_process,
    "spin": spin,
    "sleep": lambda text: time.sleep(3600),
    "memory": take_memory,
    "crash": lambda text: os.kill(os.getpid(), signal.SIGSEGV),
    "abort": lambda text: os.abort(),
    "leave": lambda text: os._exit(0),
    "raise": lambda text: [][0],
    "too much": lambda text: Scored(2.0, True),
    "not a number": lambda text: Scored(float("nan"), True),
    "nothing like a score": lambda text: "good",
    "close": close_all,
    "child": leave_a_child,
    "deaf": ignore_signals,
    "end all": lambda text: os.kill(os.getppid(), signal.SIGKILL),
}


def harm(parameters):
    return Harm(DEEDS[parameters["deed"]])


def length(parameters):
    return Harm(lambda text: Scored(1.0, True))
'''

_POINTS = """
[outrider.rewards]
vowels = plugged_rewards:vowels
harm = plugged_rewards:harm
length = plugged_rewards:length
broken = plugged_broken:anything
"""


def write_plugin(folder: Path) -> None:
    """Put it in a folder, as pip would in site-packages."""
    (folder / "plugged_rewards.py").write_text(_MODULE, encoding="utf-8")
    (folder / "plugged_broken.py").write_text("1 / 0\n", encoding="utf-8")
    info = folder / "plugged_rewards-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-rewards\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(_POINTS, encoding="utf-8")
