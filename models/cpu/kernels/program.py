"""Runs kernels one after the other, on all threads, without going back to Python between them."""

from __future__ import annotations

from typing import Any

from models.cpu.kernels.parameters import NUM_COMMON, TAKEN, THREADS_BEGUN, WORD, get
from models.cpu.kernels.scalars import (
    address_of,
    call_address,
    call_function,
    read_int,
    take_next,
    write_int,
)

(
    STEPS,  # [steps, 2] int64: a kernel's code and its parameters
    NUM_STEPS,
    BARRIER,  # a function that returns when all threads have called it; 0: there is one thread
) = range(NUM_COMMON, NUM_COMMON + 3)
NUM_PARAMETERS = NUM_COMMON + 3


def run_steps(parameters: Any) -> None:
    """Run each step on all threads; none begins before all have ended the one before.

    The counters of a step are reset for the next pass by the thread that came first.
    """
    own = address_of(parameters)
    barrier = get(own, BARRIER)
    is_first = take_next(own + WORD * THREADS_BEGUN) == 0
    for number in range(get(own, NUM_STEPS)):
        step = get(own, STEPS) + 2 * WORD * number
        of_step = read_int(step + WORD)
        call_address(read_int(step), of_step)
        if barrier != 0:
            call_function(barrier)
        if is_first:
            write_int(of_step + WORD * TAKEN, 0)
            write_int(of_step + WORD * THREADS_BEGUN, 0)
