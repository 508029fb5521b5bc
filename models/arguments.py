"""Types of command-line arguments, for argparse: a wrong value is told before any work is done."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def positive(text: str) -> int:
    """Read a whole number of at least 1.

    Raises:
        ArgumentTypeError: it is another.
    """
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return value


def seconds(text: str) -> float:
    """Read a time of at least 0 s.

    Raises:
        ArgumentTypeError: it is no such number.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, got {text!r}")
    return value


def output_file(text: str) -> Path:
    """Read the path of a file that can be written; its folder is made.

    Raises:
        ArgumentTypeError: it cannot.
    """
    path = Path(text)
    why = "it is a folder" if path.is_dir() else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            why = why or "no permission"
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise argparse.ArgumentTypeError(f"cannot write {text}: {why}")
    return path
