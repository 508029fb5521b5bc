"""Tells what of a text may be the beginning of a sign that comes later."""


def overlap(text: str, sign: str) -> int:
    """Return the length of the longest end of `text` that is a proper beginning of `sign`."""
    for length in range(min(len(text), len(sign) - 1), 0, -1):
        if sign.startswith(text[-length:]):
            return length
    return 0
