"""Builds the instructions of kernels: types and pieces of LLVM's language.

Kernels are Python that numba compiles; code that numba would not find by itself is written here in
LLVM instructions. `lanes.py` has those on vectors, `scalars.py` those on single numbers and
addresses, `tile.py` the inner loop of products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.core.errors import RequireLiteralValue
from numba.extending import intrinsic

NUM_LANES = 16  # numbers of a vector

F32 = ir.FloatType()
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
FLOATS = ir.VectorType(F32, NUM_LANES)
INTS = ir.VectorType(I32, NUM_LANES)
LONGS = ir.VectorType(I64, NUM_LANES)

Builder = Any  # ir.IRBuilder
_Build = Callable[..., ir.Value | None]


binding.initialize_native_asmparser()  # for instructions whose types llvmlite does not know


def has_feature(feature: str) -> bool:
    """Return whether numba compiles for CPUs with a feature: this CPU, or that of its settings."""
    settings: Any = numba.config
    features = settings.CPU_FEATURES
    if features is None:
        features = "" if settings.CPU_NAME is not None else get_host_cpu_features()
    return f"+{feature}" in features.split(",")


def typed(build: _Build, result: Any, *arguments: Any) -> tuple[Any, Any]:
    """Return the signature and the generator of an intrinsic that `build` emits, as numba wants."""

    def generate(context: Any, builder: Builder, signature: Any, values: Any) -> ir.Value:
        value = build(builder, *values)
        return context.get_dummy_value() if value is None else value

    return result(*arguments), generate


instruction: Any = intrinsic  # numba's, whose own types know nothing of the first argument


def constant(kind: ir.VectorType, value: float) -> ir.Constant:
    """Return the value in all lanes, known when the kernel is compiled."""
    return ir.Constant(kind, [value] * NUM_LANES)


def pointer(builder: Builder, address: ir.Value, kind: ir.Type) -> ir.Value:
    """Convert an address to a pointer for LLVM."""
    return builder.inttoptr(address, kind.as_pointer())


def plus(builder: Builder, address: ir.Value, num_bytes: int) -> ir.Value:
    """Return an address so many bytes further on."""
    return builder.add(address, ir.Constant(I64, num_bytes))


def prefetch(builder: Builder, address: ir.Value) -> None:
    """Prefetch the memory at an address. Harmless if nothing is there."""
    how = [ir.Constant(I32, number) for number in (0, 3, 1)]  # to read, close, data
    call(builder, "prefetch.p0", ir.VoidType(), pointer(builder, address, ir.IntType(8)), *how)


def past_end(builder: Builder, address: ir.Value, end: ir.Value, jump: ir.Value) -> ir.Value:
    """Return the address, or what lies there behind a jump where it is at or past `end`."""
    is_past = builder.icmp_unsigned(">=", address, end)
    return builder.select(is_past, builder.add(address, jump), address)


def call(builder: Builder, name: str, result: ir.Type, *values: ir.Value) -> ir.Value:
    """Call an intrinsic of LLVM, by its name without `llvm.`."""
    kind = ir.FunctionType(result, [value.type for value in values])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}")
    return builder.call(function, values)


def vector_call(builder: Builder, name: str, *values: ir.Value) -> ir.Value:
    """Call an LLVM intrinsic of vectors."""
    return call(builder, f"{name}.v16f32", FLOATS, *values)


def emit_fma(builder: Builder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """Emit a * b + c, rounded once."""
    return vector_call(builder, "fma", a, b, c)


def spread(builder: Builder, value: ir.Value, kind: ir.VectorType) -> ir.Value:
    """Copy the value to all lanes."""
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, constant(INTS, 0))


def is_float32(like: Any) -> bool:
    """Return whether such numbers are float32 in memory, not bfloat16."""
    return bool(like == types.float32)


def literal(number: Any, name: str) -> int:
    """Return the value of an argument that is a constant of the code."""
    if not isinstance(number, types.IntegerLiteral):
        raise RequireLiteralValue(name)
    return int(number.literal_value)
