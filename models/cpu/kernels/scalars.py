"""Instructions on single numbers and addresses, for kernels."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from models.cpu.kernels.emit import (
    F32,
    I64,
    Builder,
    instruction,
    literal,
    pointer,
    typed,
)


@instruction
def read_float(context: Any, address: Any) -> Any:
    """Read the float32 at an address."""
    return typed(lambda b, a: b.load(pointer(b, a, F32), align=4), types.float32, types.int64)


@instruction
def write_float(context: Any, address: Any, number: Any) -> Any:
    """Write a float32."""

    def build(builder: Builder, address: ir.Value, number: ir.Value) -> None:
        builder.store(number, pointer(builder, address, F32), align=4)

    return typed(build, types.void, types.int64, types.float32)


@instruction
def read_real(context: Any, address: Any) -> Any:
    """Read the float64 at an address."""
    real = ir.DoubleType()
    return typed(lambda b, a: b.load(pointer(b, a, real), align=8), types.float64, types.int64)


@instruction
def read_int(context: Any, address: Any) -> Any:
    """Read the int64 at an address."""
    return typed(lambda b, a: b.load(pointer(b, a, I64), align=8), types.int64, types.int64)


@instruction
def copy_bytes(context: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy so many bytes, which do not overlap."""

    def build(builder: Builder, target: ir.Value, source: ir.Value, count: ir.Value) -> None:
        byte = ir.IntType(8)
        cgutils.raw_memcpy(
            builder, pointer(builder, target, byte), pointer(builder, source, byte), count, 1
        )

    return typed(build, types.void, *[types.int64] * 3)


@instruction
def take_next(context: Any, address: Any) -> Any:
    """Add one to the int64 there, atomically; return its old value."""

    def build(builder: Builder, address: ir.Value) -> ir.Value:
        place = pointer(builder, address, I64)
        return builder.atomic_rmw("add", place, ir.Constant(I64, 1), "monotonic")

    return typed(build, types.int64, types.int64)


@instruction
def address_of(context: Any, pointer: Any) -> Any:
    """Convert a pointer to an int."""
    return typed(lambda builder, p: builder.ptrtoint(p, I64), types.int64, types.voidptr)


@instruction
def write_int(context: Any, address: Any, number: Any) -> Any:
    """Write an int64."""

    def build(builder: Builder, address: ir.Value, number: ir.Value) -> None:
        builder.store(number, pointer(builder, address, I64), align=8)

    return typed(build, types.void, types.int64, types.int64)


@instruction
def call_address(context: Any, function: Any, argument: Any) -> Any:
    """Call the C function there with one address."""

    def build(builder: Builder, function: ir.Value, argument: ir.Value) -> None:
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte])
        code = builder.inttoptr(function, kind.as_pointer())
        builder.call(code, [builder.inttoptr(argument, byte)])

    return typed(build, types.void, types.int64, types.int64)


@instruction
def call_function(context: Any, function: Any) -> Any:
    """Call the C function there, which takes nothing."""

    def build(builder: Builder, function: ir.Value) -> None:
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(builder.inttoptr(function, kind.as_pointer()), [])

    return typed(build, types.void, types.int64)


@instruction
def stack_bytes(context: Any, size: Any) -> Any:
    """Return the address of so many bytes of the calling kernel's own; `size` is a constant."""
    kind = ir.ArrayType(ir.IntType(8), literal(size, "size"))

    def build(builder: Builder, _: ir.Value) -> ir.Value:
        memory = cgutils.alloca_once(builder, kind)
        memory.align = 64
        return builder.ptrtoint(memory, I64)

    return typed(build, types.int64, size)
