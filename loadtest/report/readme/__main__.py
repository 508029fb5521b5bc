"""Rewrite the blocks of figures of all pages from the results that are kept in `loadtest/results`.

    python -m loadtest.report.readme            rewrite all blocks
    python -m loadtest.report.readme --check    change nothing; end with 1 where one is out of date

A block is `<!-- figures: NAME -->` up to `<!-- end of figures -->`; names are those of `FIGURES`.
Keep a repeated measurement's result and run this: no figure is typed by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.report.machine import ROOT
from loadtest.report.readme.blocks import fill
from loadtest.report.readme.figures import FIGURES


def pages(root: Path = ROOT) -> list[Path]:
    """Return the Markdown files that may hold blocks: READMEs, their docs, `.github`."""
    found = ("*.md", "*/README.md", "*/docs/*.md", ".github/**/*.md")
    return sorted({page for pattern in found for page in root.glob(pattern)})


def rewritten(page: Path, root: Path = ROOT) -> str:
    """Return the text that `page` should have.

    Raises:
        ValueError: a block is not closed, or no figure has its name.
    """

    def figure(name: str) -> str:
        if name not in FIGURES:
            raise ValueError(f"no figure is called {name!r}; there are {', '.join(FIGURES)}")
        return FIGURES[name](page.parent)

    try:
        return fill(page.read_text(encoding="utf-8"), figure)
    except ValueError as error:
        raise ValueError(f"{page.relative_to(root)}: {error}") from error


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Rewrite or check the pages below `root`; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.report.readme", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--check", action="store_true", help="only say which pages are out of date")
    is_check = parser.parse_args(words).check
    stale = [
        page for page in pages(root) if page.read_text(encoding="utf-8") != rewritten(page, root)
    ]
    for page in stale:
        print(f"{'out of date' if is_check else 'rewritten'}: {page.relative_to(root)}")
        if not is_check:
            page.write_text(rewritten(page, root), encoding="utf-8")
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
