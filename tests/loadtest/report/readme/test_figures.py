"""The figures of the READMEs are those of the kept results, and none of these is left out.

Blocks of generated text stand within pages that are written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadtest.frame.page import page, records
from loadtest.report.machine import ROOT
from loadtest.report.readme.__main__ import main, pages, rewritten
from loadtest.report.readme.blocks import fill, names
from loadtest.report.readme.figures import FIGURES
from loadtest.report.readme.result import RESULTS, Result, goal


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_has_the_figures_of_the_kept_results(page: Path) -> None:
    is_current = page.read_text(encoding="utf-8") == rewritten(page)
    assert is_current, "out of date: python -m loadtest.report.readme rewrites it"


def test_every_figure_is_shown_somewhere() -> None:
    shown = {name for page in pages() for name in names(page.read_text(encoding="utf-8"))}
    assert shown == set(FIGURES)


def test_every_kept_result_has_a_page_that_links_to_it_and_says_how_it_was_made() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages())
    text += page()
    for path in RESULTS.glob("*.json"):
        assert f"results/{path.name})" in text or f"[record]({path.name})" in text, path.name
        result = Result.load(path.stem, ROOT / "loadtest")
        made = result.made()
        assert result["command"] in made
        assert result["machine"]["date"] in made
        assert result["machine"]["processor"] in made


def test_links_lead_to_files_from_the_folder_of_the_page() -> None:
    made = Result.load("acceptance", ROOT / ".github" / "decisions").made()
    assert "(../../loadtest/results/acceptance.json)" in made
    assert "(../../loadtest/results/acceptance.png)" in made


def test_an_aim_that_was_missed_is_called_so() -> None:
    assert goal(4.87, "at least", 5) == "at least 5: **missed**"
    assert goal(5, "at least", 5) == "at least 5: met"
    assert goal(1.36, "at most", 1.03) == "at most 1.03: **missed**"
    assert goal(1.03, "at most", 1.03) == "at most 1.03: met"


def test_the_front_page_counts_each_cell_of_the_scenarios_once() -> None:
    shown = FIGURES["sooner"](ROOT)
    kept = {name: one for name, one in records().items() if name.startswith("scenarios-")}
    cells = {
        (name, *(row[key] for key in ("stage", "workload", "batch")))
        for name, one in kept.items()
        for row in one["samples"]
    }
    assert f"over {len(cells)} cells of {len(kept)} pairs" in shown
    of_groups = [int(total) for total in re.findall(r"\d+ of (\d+)", shown)]
    assert of_groups[0] == len(cells) == sum(of_groups[1:])


def test_the_check_says_what_is_out_of_date(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text(
        "<!-- figures: kinds-in-short -->\n<!-- end of figures -->\n"
    )
    assert main(["--check"], tmp_path) == 1
    assert capsys.readouterr().out == "out of date: README.md\n"
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    assert "| extraction |" in (tmp_path / "README.md").read_text()


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
