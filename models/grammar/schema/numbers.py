"""Fits the bounds of numbers to what the compiler can write: 64-bit floats within 2^63.

It reads a bound as a float, so that a whole number beyond 2^53 could be rounded past the client's.
Here it is rounded inward, to the next float that breaks no bound. So is a float that the compiler
reads as another one. A number with a bound on one side beyond 2^63 stays within 2^63. int64 itself
says so, and no schema with the largest float or 1e20 as its bound means anything else. Bounds
closer to 0 than 1e-30 are 1e-30, or 0.

So every number that is written is within the client's bounds. Numbers beyond 2^63, which no 64-bit
integer has, and some next to a bound are not written. One is 18.4 below 18.48; 18.40 is.
Source: llguidance 1.9, `rx_float_range`.
"""

from __future__ import annotations

import math
from decimal import Decimal

from models.grammar.limits import JsonValue, Schema, json_path, refuse
from models.grammar.schema.complaints import Complaints
from models.grammar.schema.places import Places

_HIGHEST = 2**63 - 1  # the highest integer; the highest float is the next below
_LARGEST = 2**63 - 1024  # the largest float below 2^63
_TINY = 1e-30
_LOW, _HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def is_exact(number: int | float) -> bool:
    """Return whether the compiler reads and writes a number as it is.

    It reads a float as its digits by a power of ten, each rounded. It writes a whole number as a
    float, and ends its process at -2^63.
    """
    if isinstance(number, int):
        return abs(number) < 2**63 and int(float(number)) == number
    if number == -(2.0**63):
        return False
    _, digits, exponent = Decimal(repr(abs(number))).as_tuple()
    mantissa = float("".join(map(str, digits)))
    power = float(f"1e{abs(int(exponent))}")
    return abs(number) == (mantissa * power if int(exponent) >= 0 else mantissa / power)


def fit_bounds(schema: Schema, places: Places, complaints: Complaints) -> None:
    """Rewrite the bounds in `schema`, in place.

    Raises:
        UnsupportedGrammar: a lower bound above 2^63, or an upper one below -2^63.
    """
    for path, inner in list(places.walk(schema)):
        types = inner.get("type")
        names = types if isinstance(types, list) else [types]
        is_whole = "integer" in names and "number" not in names
        for keyword in (*_LOW, *_HIGH):
            value = inner.get(keyword)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            with complaints.taken():
                _fit(inner, keyword, value, path=path + json_path(keyword), is_whole=is_whole)


def _fit(inner: Schema, keyword: str, value: int | float, *, path: str, is_whole: bool) -> None:
    sign = 1 if keyword in _HIGH else -1  # seen from above: the mirror image of a lower bound
    bound = sign * value
    if bound < -_LARGEST:
        refuse(f"{value} leaves no number within 2^63, which is the limit", path=path)
    if bound > _LARGEST:
        del inner[keyword]
        least = _HIGHEST + keyword.startswith("exclusive")
        is_int64 = is_whole and sign > 0 and bound >= least
        _set(inner, sign, _HIGHEST if is_int64 else _LARGEST)
    elif isinstance(value, int) and abs(value) > 2**53 and int(float(value)) != value:
        del inner[keyword]
        near = float(bound)
        _set(inner, sign, int(near if near < bound else math.nextafter(near, -math.inf)))
    elif 0 < abs(bound) < _TINY:
        del inner[keyword]
        _set(inner, sign, 0 if bound > 0 else -_TINY)
    elif isinstance(value, float) and not is_exact(value):
        del inner[keyword]
        while not is_exact(bound):
            bound = math.nextafter(bound, -math.inf)
        _set(inner, sign, bound)


def _set(inner: Schema, sign: int, bound: int | float) -> None:
    """Set the bound that `sign` times a number must not exceed, unless a closer one is there."""
    keyword = "maximum" if sign > 0 else "minimum"
    other: JsonValue = inner.get(keyword)
    if isinstance(other, int | float) and not isinstance(other, bool):
        bound = min(bound, sign * other)
    inner[keyword] = sign * bound
