"""Keeps Python's garbage collector from holding up streams.

A full collection looks at every object of the process. There are 600,000 once torch and
transformers are imported, and it takes a quarter of a second. Frozen objects are passed over. Most
are modules' own, and live as long as the process anyway.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def freeze_heap() -> None:
    """Collect what is garbage now, and pass over all other objects from now on."""
    gc.collect()
    gc.freeze()


@contextmanager
def importing() -> Iterator[None]:
    """Collect nothing while modules are imported, and pass over their objects from then on.

    Collections took a second of the CPU while a rank imported torch and transformers.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
