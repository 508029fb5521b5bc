"""Steps of a pass, run one after the other in one call of machine code."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from models.cpu.kernels import program
from models.cpu.kernels.compiling import Call, openmp


class Program:
    """Kernels that follow each other, each by all threads.

    Python would take longer between two of them than a small product. Everything that Python
    touches is slow after a product has streamed its weights through the caches.

    Args:
        steps: kernels that share a table.
        num_threads: of each.
    """

    def __init__(self, steps: Sequence[Call], num_threads: int) -> None:
        addresses = [number for step in steps for number in (step.code, step.address)]
        array = (ctypes.c_int64 * len(addresses))(*addresses)
        self._call = Call(program.run_steps, program.NUM_PARAMETERS, array, steps)
        self._call.parameters[program.STEPS] = ctypes.addressof(array)
        self._call.parameters[program.NUM_STEPS] = len(steps)
        barrier = openmp("GOMP_barrier")
        self._num_threads = 1 if barrier is None else num_threads
        self._barrier = 0 if barrier is None else ctypes.cast(barrier, ctypes.c_void_p).value or 0

    def run(self, *, is_short: bool = False) -> None:
        """Run all steps; `is_short`: by one thread, which is sooner done with little work."""
        num_threads = 1 if is_short else self._num_threads
        self._call.parameters[program.BARRIER] = 0 if num_threads == 1 else self._barrier
        self._call.run(num_threads)
