"""Passes by rows, for the rooms that still ask here: see `loadtest.frame.passes`."""

from __future__ import annotations

from loadtest.frame.passes import PassShape as PassShape
from loadtest.frame.passes import decode_shapes as decode_shapes
from loadtest.frame.passes import measure_passes as measure_passes
from loadtest.frame.passes import memory_floor_ms as memory_floor_ms
from loadtest.frame.passes import num_product_bytes as num_product_bytes
from loadtest.frame.passes import tables_for as tables_for
from loadtest.frame.passes import timed_pass as timed_pass
