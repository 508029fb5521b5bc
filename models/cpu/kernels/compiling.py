"""Compiles kernels, keeps them on disk, and runs them on torch's own threads.

A kernel is a C function of one address: that of its parameters, int64 numbers in a row. numba
compiles it for this CPU at its first use and keeps the machine code on disk. The folder is named by
the sources of all kernels, and of what they take constants from. So a change in any is seen.
Processes that start together take turns: one compiles a kernel, the others read it.

A kernel runs on the threads of torch's operations: those of the OpenMP library that torch brings. A
second pool would fight with them for the cores, because they spin for a while after each operation.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numba
import numpy as np
import torch
from llvmlite import binding
from numba import cfunc, njit, types

# A function that kernels call. Sums stay in the order they are written: results hang on it.
inline: Any = njit(fastmath=False, error_model="numpy")

_SIGNATURE = types.void(types.voidptr)
_CONSTANTS = ("sampling/noise.py", "sampling/truncation.py", "sampling/kernels/terms.py")
_TURN_S = 120.0  # that another process may compile a kernel; a second is usual
_LOOK_S = 0.02  # until it is asked again
_lock = threading.Lock()
_logger = logging.getLogger(__name__)


class Call:
    """A compiled kernel with parameters of its own. Not for several threads at once.

    Args:
        function: of a pointer to the parameters, as numba can compile it; a function of a module.
        num_parameters: how many it has.
        kept: what its parameters are addresses of.

    Attributes:
        parameters: int64 numbers, all zero at first; to be set before `run`.
        code: address of the machine code.
        address: of the parameters.
    """

    __slots__ = ("_kept", "_run", "_run_parallel", "address", "code", "parameters")

    def __init__(self, function: Callable[[Any], None], num_parameters: int, *kept: object) -> None:
        self.parameters: Any = (ctypes.c_int64 * num_parameters)()
        self.address = ctypes.addressof(self.parameters)
        self.code = _compile(function).address
        self._kept = kept
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.code)
        self._run_parallel = openmp("GOMP_parallel")

    def run(self, num_threads: int) -> None:
        """Run the kernel, by so many threads of torch's at once."""
        parameters = self.parameters
        parameters[0] = parameters[1] = 0  # `kernels.parameters.TAKEN`, `THREADS_BEGUN`
        if num_threads == 1 or self._run_parallel is None:
            self._run(self.address)
        else:
            self._run_parallel(self.code, self.address, num_threads, 0)


def compile_together(functions: Sequence[Callable[[Any], None]]) -> None:
    """Have the machine code of all kernels, beside a process that wants the same ones.

    What another compiles just now comes last, so that two processes take half of them each.
    """
    left = list(functions)
    while left:
        function = next((each for each in left if not _is_taken(each)), left[0])
        left.remove(function)
        _compile(function)


def float_bits(number: float) -> int:
    """Return the bits of a float32, as a kernel finds it among its parameters."""
    return int(np.float32(number).view(np.uint32))


@functools.cache
def _compile(function: Callable[[Any], None]) -> Any:
    with _lock:
        folder = _cache_folder()
        if folder is not None:
            try:
                return _compile_into(folder, function)
            except Exception as error:  # noqa: BLE001 - numba passes on what a bad file or disk brings
                _logger.warning("kernels are not kept in %s: %r", folder, error)
                shutil.rmtree(folder, ignore_errors=True)
        return cfunc(_SIGNATURE, error_model="numpy")(function)


def _compile_into(folder: Path, function: Callable[[Any], None]) -> Any:
    """Read the function's machine code from the folder, or compile it and keep it there."""
    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(folder)
    try:
        with _turn(folder, function):
            return cfunc(_SIGNATURE, cache=True, error_model="numpy")(function)
    finally:
        settings.CACHE_DIR = before


@contextlib.contextmanager
def _turn(folder: Path, function: Callable[[Any], None]) -> Iterator[None]:
    """Wait until no other process compiles this function; log where none has done so before.

    The file has the function's name once its machine code is there.
    """
    began_s = time.monotonic()
    with _turn_file(folder, function).open("a+") as file:
        while not _is_ours(file) and time.monotonic() - began_s < _TURN_S:
            time.sleep(_LOOK_S)
        is_new = os.fstat(file.fileno()).st_size == 0
        if is_new:
            name = function.__qualname__
            _logger.info("compiling kernel %s, once for this CPU, into %s", name, folder)
        yield
        if is_new:
            file.write(function.__qualname__)


def _is_taken(function: Callable[[Any], None]) -> bool:
    """Return whether another process compiles this function now."""
    folder = _cache_folder()
    if folder is None:
        return False
    try:
        with _turn_file(folder, function).open("a+") as file:
            return not _is_ours(file)
    except OSError:
        return False


def _turn_file(folder: Path, function: Callable[[Any], None]) -> Path:
    return folder / f"{function.__module__}.{function.__qualname__}.turn"


def _is_ours(file: IO[str]) -> bool:
    """Return whether this process has the turn now, which ends when the file is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: each process compiles for itself
        return True
    return True


def _cache_folder() -> Path | None:
    """Make and return the folder for these sources and this CPU; None if it cannot be made."""
    try:
        settings: Any = numba.config
        root = settings.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(root) / "outrider" / "kernels" / _hash_of_sources()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # no home, or a disk that cannot be written
        _logger.warning("kernels are compiled at every start: %s", error)
        return None
    return folder


def _hash_of_sources() -> str:
    # numba tells CPUs apart itself, but not safely where hosts with one home start together.
    cpu = binding.get_host_cpu_name() + binding.get_host_cpu_features().flatten()
    digest = hashlib.sha256(f"{numba.__version__} {cpu}".encode())
    own, models = Path(__file__).parent, Path(__file__).parents[2]
    for file in (*sorted(own.glob("*.py")), *(models / name for name in _CONSTANTS)):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


# Functions of GNU OpenMP: `GOMP_parallel` runs a function of one address, given that address, the
# threads and flags; `GOMP_barrier` returns when all threads of such a region have called it.
_OPENMP: dict[str, tuple[type[Any], ...]] = {
    "GOMP_parallel": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint),
    "GOMP_barrier": (),
}


@functools.cache
def openmp(name: str) -> Any:
    """Return a function of the GNU OpenMP that torch has loaded; None if torch runs on another."""
    own = sorted(map(str, Path(torch.__file__).parent.glob("lib/libgomp*")))
    for path in (*own, "libgomp.so.1"):
        try:
            function = getattr(ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD), name)
        except (OSError, AttributeError):
            continue
        function.argtypes = _OPENMP[name]
        function.restype = None
        return function
    _logger.warning("torch runs on another OpenMP than GNU's: kernels take one thread each")
    return None
