"""The calculator's formulas, and what it refuses."""

from __future__ import annotations

import pytest

from loadtest.acceptance.theory import analyse, constant_tokens
from loadtest.study.__main__ import main
from loadtest.study.theory import (
    best_length,
    best_measured_length,
    speed_up,
    step_share,
    theory_lines,
)


def test_the_figures_of_the_textbook():
    assert constant_tokens(0.8, 5) == pytest.approx(3.69, abs=0.005)
    assert speed_up(constant_tokens(0.8, 5), 5, 0.1) == pytest.approx(3.68928 / 1.5)
    assert speed_up(1.0, 0, 0.3) == 1.0


@pytest.mark.parametrize(
    ("acceptance", "cost", "best"),
    [
        (0.0, 0.1, 0),  # nothing is ever accepted
        (0.3, 0.3, 0),  # a + 1 tokens for 1 + c: 1.0, no gain
        (0.3, 0.2, 1),
        (0.8, 0.1, 6),
        (0.8, 0.0, 16),  # what costs nothing is drafted as far as one looks
        (1.0, 0.5, 16),
    ],
)
def test_the_best_k(acceptance, cost, best):
    assert best_length(acceptance, cost) == best
    own = speed_up(constant_tokens(acceptance, best), best, cost)
    for k in range(17):
        assert own >= speed_up(constant_tokens(acceptance, k), k, cost)


def test_what_was_measured_has_to_beat_plain_decoding():
    assert best_measured_length({1: 1.2, 3: 1.5, 5: 1.4}) == 3
    assert best_measured_length({1: 0.9, 3: 1.0}) == 0
    assert best_measured_length({}) == 0


def test_the_command_prints_tokens_speed_up_best_k_and_a_table(capsys):
    assert main(["--theory", "0.8", "0.1", "5"]) == 0
    printed = capsys.readouterr().out
    assert "= 3.69" in printed
    assert "E / (1 + k c) = 2.46" in printed
    assert "best k = 6, with a speed-up of 2.47" in printed
    table = {line.split()[0]: line.split()[1:] for line in printed.splitlines()[7:]}
    assert table["5"] == ["3.69", "2.46"]
    assert table["6"] == ["3.95", "2.47", "best"]


def test_a_cost_may_be_named_either_way_and_the_command_says_which(capsys):
    assert main(["--theory", "0.8", "0.05", "5"]) == 0
    first, *below = capsys.readouterr().out.splitlines()
    assert first == (
        "c = 0.05 is draft over target: a draft step takes 0.05 of a pass, "
        "a pass as long as 20 of them"
    )
    assert main(["--theory", "0.8", "20", "5"]) == 0
    other, *same = capsys.readouterr().out.splitlines()
    assert other.startswith("c = 20 is above 1, so it is target over draft: a pass takes as long")
    assert same == below
    assert "speed-up E / (1 + k c) = 2.95" in below  # 3.69 / 1.25


def test_a_cost_of_nothing_and_of_a_whole_pass_are_taken_as_they_are():
    assert next(iter(theory_lines(0.8, 0.0, 5))).endswith("a draft step takes 0 of a pass")
    assert step_share(1.0) == 1.0
    assert step_share(1.25) == pytest.approx(0.8)


def test_a_picture_is_drawn_of_the_theory_and_of_nothing_else(tmp_path, capsys):
    file = tmp_path / "made" / "theory.png"
    assert main(["--theory", "0.8", "10", "5", "--picture", str(file)]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert f"written: {file}" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--picture", str(file)])
    assert "picture is of --theory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("1.2", "0.1", "5"), "a must be within 0 to 1, got 1.2"),
        (("0.8", "-1", "5"), "c must be a number of at least 0, got -1"),
        (("0.8", "nan", "5"), "c must be a number of at least 0, got nan"),
        (("0.8", "inf", "5"), "c must be a number of at least 0, got inf"),
        (("0.8", "0.1", "2.5"), "theory wants numbers a and c and a whole number k"),
    ],
)
def test_the_calculator_refuses_by_name(capsys, values, message):
    with pytest.raises(SystemExit) as stopped:
        main(["--theory", *values])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_theory_refuses_a_negative_k():
    with pytest.raises(ValueError, match="k must be at least 0, got -1"):
        list(theory_lines(0.8, 0.1, -1))


def test_shorter_drafts_put_fewer_positions_at_risk():
    """A round of 1 accepted of 1 drafted says nothing of position 2."""
    analysis = analyse({3: [[1, 3, 0]]}, drafted={3: [[1, 3, 2]]})
    assert analysis.num_at_risk == [3, 1, 1]
    assert analysis.hazards == pytest.approx([2 / 3, 1, 1])
    whole = analyse({3: [[1, 3, 0]]})
    assert whole.num_at_risk == [3, 2, 1]
