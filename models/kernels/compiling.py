"""How kernels are compiled, kept on disk, and run on torch's own threads.

A kernel is a C function of one address: that of its parameters, int64 numbers in a row. numba
compiles it for this CPU the first time it is wanted and keeps the machine code on disk, in a folder
named by the sources of all kernels, so that a change in any of them is seen.

It runs on the threads that torch's operations run on: those of the OpenMP library that torch
brings. A second pool would fight with them for the cores, because they spin for a while after
each operation.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numba import cfunc, njit, types

# A function that kernels call. Sums stay in the order they are written: results hang on it.
part: Any = njit(fastmath=False, error_model="numpy")

_lock = threading.Lock()


class Call:
    """A compiled kernel with parameters of its own. Not for several threads at once.

    Args:
        function: of a pointer to the parameters, as numba can compile it; a function of a module.
        num_parameters: how many it has.

    Attributes:
        parameters: int64 numbers, all zero at first; to be set before `run`.
    """

    __slots__ = ("_code", "_run", "_run_parallel", "_where", "parameters")

    def __init__(self, function: Callable[[Any], None], num_parameters: int) -> None:
        self.parameters: Any = (ctypes.c_int64 * num_parameters)()
        self._where = ctypes.addressof(self.parameters)
        self._code = _compile(function).address
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._code)
        self._run_parallel = _openmp_parallel()

    def run(self, num_threads: int) -> None:
        """Run the kernel, by so many threads of torch's at once."""
        if num_threads == 1 or self._run_parallel is None:
            self._run(self._where)
        else:
            self._run_parallel(self._code, self._where, num_threads, 0)


def float_bits(number: float) -> int:
    """A float32 as a kernel finds it among its parameters."""
    return int(np.float32(number).view(np.uint32))


@functools.cache
def _compile(function: Callable[[Any], None]) -> Any:
    signature = types.void(types.voidptr)
    with _lock, _kept_on_disk() as is_kept:
        return cfunc(signature, cache=is_kept, error_model="numpy")(function)


@contextmanager
def _kept_on_disk() -> Iterator[bool]:
    """Let numba keep what it compiles meanwhile in a folder for these sources; whether it can."""
    settings: Any = numba.config
    before = settings.CACHE_DIR
    root = before or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "outrider" / "kernels" / _hash_of_sources()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # no home, or a disk that cannot be written: compiled again each time
        yield False
        return
    settings.CACHE_DIR = str(folder)
    try:
        yield os.access(folder, os.W_OK)
    finally:
        settings.CACHE_DIR = before


def _hash_of_sources() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _openmp_parallel() -> Callable[..., None] | None:
    """GNU OpenMP's call for a parallel region, of the copy that torch has loaded; None: not there.

    Its arguments: a function of one address, the address, the threads, flags.
    """
    for file in sorted(Path(torch.__file__).parent.glob("lib/libgomp*")):
        try:
            library = ctypes.CDLL(str(file), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            run = library.GOMP_parallel
        except (OSError, AttributeError):
            continue
        run.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        run.restype = None
        return run
    return None
