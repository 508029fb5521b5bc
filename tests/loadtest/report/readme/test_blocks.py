"""Blocks of generated text within pages that are written by hand."""

from __future__ import annotations

import pytest

from loadtest.report.readme.blocks import fill, names

PAGE = """\
before
<!-- figures: speed -->
old
<!-- end of figures -->
between
<!-- figures: soak -->
<!-- end of figures -->
"""


def test_only_what_is_within_blocks_is_replaced() -> None:
    filled = fill(PAGE, lambda name: f"new {name}\nin two lines")
    assert filled == (
        "before\n<!-- figures: speed -->\nnew speed\nin two lines\n<!-- end of figures -->\n"
        "between\n<!-- figures: soak -->\nnew soak\nin two lines\n<!-- end of figures -->\n"
    )
    assert names(filled) == ["speed", "soak"]


def test_filling_twice_changes_nothing_more() -> None:
    once = fill(PAGE, str.upper)
    assert fill(once, str.upper) == once


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a\n<!-- figures: x -->\nb\n", "line 2: this block has no end"),
        ("<!-- end of figures -->\n", "line 1: no block is open here"),
        (
            "<!-- figures: x -->\n\n<!-- figures: y -->\n<!-- end of figures -->\n",
            "line 3: the block of line 1 has not ended",
        ),
    ],
    ids=["no end", "no beginning", "one in another"],
)
def test_a_block_that_is_not_closed_is_refused_by_line(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        fill(text, str)
