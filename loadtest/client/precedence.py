"""Lets a load go before the service that it shares cores with.

A sleeping process wakes up to a second late on a machine whose cores are all busy. That would be
measured as the service's delay. A load belongs on a machine of its own; this is the next best
thing.
"""

from __future__ import annotations

import os
from typing import Literal


def take_precedence() -> Literal["real-time", "normal"]:
    """Give this thread real-time priority, where that is allowed, and say which it has.

    Threads and processes that it starts have none of it.
    """
    try:
        policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except (AttributeError, OSError):  # another system, or no right to
        return "normal"
    return "real-time"
