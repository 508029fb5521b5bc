"""The figures of the READMEs are those of the kept results, and none of these is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.frame.page import page
from loadtest.report.machine import ROOT
from loadtest.report.readme.__main__ import main, pages, rewritten
from loadtest.report.readme.blocks import fill, names
from loadtest.report.readme.figures import FIGURES
from loadtest.report.readme.peer import peer
from loadtest.report.readme.result import RESULTS, Result, goal
from loadtest.report.readme.speed import bench


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


@pytest.mark.parametrize("name", ["bench-349m-18m", "bench-demo"])
def test_the_bench_shows_as_many_misses_as_the_result_has(name: str) -> None:
    result = Result.load(name, ROOT)
    (pair,) = result["pairs"].values()
    missed = [claim for claim in pair["claims"] if not claim["is_met"]]
    assert bench(result).count("**missed**") == len(missed)


@pytest.mark.parametrize("name", ["llama-349m-18m"])
def test_the_comparison_with_a_peer_shows_its_misses_and_both_sides(name: str) -> None:
    result = Result.load(name, ROOT)
    shown = peer(result)
    assert shown.count("**missed**") == sum(not claim["is_met"] for claim in result["claims"])
    assert "| tokens/s | ours, k = 0 | ours, best drafted | llama.cpp, k = 0 |" in shown


def changed(name: str, change: Any) -> Result:
    """A kept result with something else in it."""
    content = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    change(content)
    return Result(name, content, ROOT)


def test_a_peers_draft_model_and_its_n_grams_have_columns_of_their_own() -> None:
    def add(content: dict[str, Any]) -> None:
        line = next(each for each in content["lines"] if each["way"].startswith("draft "))
        content["lines"].append({**line, "way": "ngram-mod 4", "tokens_per_s": 12.3})

    head, _, *rows = peer(changed("llama-349m-18m", add)).split("\n")
    assert "| llama.cpp, k = 0 | llama.cpp, draft model | llama.cpp, n-grams |" in head
    assert "ours, best drafted" in head
    assert sum("| 12 (ngram-mod 4) |" in row for row in rows) == 1
    assert any("(draft k=8)" in row and "| - |" in row for row in rows)


def test_a_result_that_is_not_there_is_no_figure() -> None:
    with pytest.raises(OSError, match="nowhere"):
        Result.load("nowhere", ROOT)


def test_a_figure_that_was_typed_by_hand_is_overwritten() -> None:
    page = ROOT / "README.md"
    text = page.read_text(encoding="utf-8")
    forged = text.replace("| extraction | ", "| extraction | 9")
    assert forged != text
    assert fill(forged, lambda name: FIGURES[name](page.parent)) == text


def test_the_check_says_what_is_out_of_date(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text("<!-- figures: fuzz -->\n<!-- end of figures -->\n")
    assert main(["--check"], tmp_path) == 1
    assert capsys.readouterr().out == "out of date: README.md\n"
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    assert "| engines |" in (tmp_path / "README.md").read_text()


def test_a_block_with_an_unknown_name_is_refused_with_the_page(
    tmp_path: Path,
) -> None:
    page = tmp_path / "README.md"
    page.write_text("<!-- figures: no-such -->\n<!-- end of figures -->\n")
    with pytest.raises(ValueError, match=r"README.md: no figure is called 'no-such'; there are"):
        rewritten(page, tmp_path)
