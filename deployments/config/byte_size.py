"""Sizes of memory as people write them."""

from __future__ import annotations

import re

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def byte_size(value: object) -> object:
    """Bytes of "2GiB" or "1.5 GB"; anything but a string is left as it is.

    Raises:
        ValueError: a string that is no number with a unit.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"a size needs a number and one of {', '.join(_UNITS)}")
    return int(float(match[1]) * _UNITS[match[2]])
