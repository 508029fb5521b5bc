"""Prints what a benchmark measured of one pair: passes by rows, and tokens per second by way."""

from __future__ import annotations

from typing import Any

from loadtest.bench.loop import SPLIT


def print_pair(label: str, content: dict[str, Any]) -> None:
    """All tables of one pair, from its part of the record."""
    print(f"\n== {label}")
    for part in ("target", "draft"):
        if part in content:
            _print_passes(part, content[part])
    if content["lines"]:
        _print_lines(content["lines"])
    if "gaps" in content:
        _print_gaps(content["gaps"])


def _print_passes(part: str, values: dict[str, Any]) -> None:
    print(f"\n{part + ' pass':16}{'rows':>6}{'ms':>9}{'products':>10}{'ratio':>7}{'to 1 row':>10}")
    for line in values["passes"]:
        print(
            f"{line['name']:16}{line['num_rows']:>6}{line['pass_ms']:>9.2f}"
            f"{line['products_ms']:>10.2f}{line['ratio']:>7.2f}{line['to_one_row']:>10.2f}"
        )
    if "memory_floor_ms" in values:
        print(f"weights at the speed of copying: {values['memory_floor_ms']:.2f} ms")


def _print_lines(lines: list[dict[str, Any]]) -> None:
    print(
        f"\n{'':8}{'':22}{'batch':>6}{'tokens/s':>10}{'length':>8}{'rate':>6}{'k':>5}"
        + "".join(f"{part:>9}" for part in SPLIT)
        + "   (ms per round)"
    )
    for line in lines:
        text = f"{line['where']:8}{line['way']:22}{line['batch']:>6}{line['tokens_per_s']:>10.1f}"
        if line["round_ms"]:
            text += (
                f"{line['tokens_per_round']:>8.2f}{line['acceptance']:>6.2f}{line['mean_k']:>5.1f}"
            )
            text += "".join(f"{line['round_ms'][part]:>9.3f}" for part in SPLIT)
        print(text)


def _print_gaps(runs: list[dict[str, Any]]) -> None:
    print(
        f"\n{'a stream beside a long prompt':30}{'gap before':>11}{'worst':>8}{'beside':>8}"
        f"{'worst':>8}{'ratio':>7}   {'first token of the prompt'}"
    )
    for run in runs:
        name = f"{run['way']}, {run['num_prompt_tokens']} tokens"
        print(
            f"{name:30}{run['quiet_ms']:>8.1f} ms{run['quiet_worst_ms']:>8.1f}"
            f"{run['beside_ms']:>8.1f}{run['beside_worst_ms']:>8.1f}{run['slowdown']:>7.2f}"
            f"   {run['first_token_s']:.2f} s, alone {run['alone_first_token_s']:.2f} s"
        )
