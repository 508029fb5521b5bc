"""Figures of what drafts: heads on the target, trees, several draft models, guesses."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path

from loadtest.report.readme.result import Result, claims_table, goal, table


def heads(result: Result) -> str:
    """Tokens per second with a target's own heads, next to the same without drafts."""
    columns = ["plain", "drafted", "gain", "tokens a pass", "accepted", "goal"]
    head = ["heads", "prompts", "clients", *columns]
    rows = [
        [
            Path(one["folder"]).name,
            one["kind"],
            str(one["batch"]),
            f"{one['tokens_per_s']['plain']:,.0f}",
            f"{one['tokens_per_s']['heads']:,.0f}",
            f"{one['to_plain']:.2f}",
            f"{one['tokens_per_round']:.2f}",
            f"{one['acceptance']:.2f}",
            "" if claim is None else goal(claim["value"], claim["relation"], claim["goal"]),
        ]
        for one, claim in zip_longest(result["lines"], result["claims"])
    ]
    return f"{table(head, rows)}\n\n{result.made()}"


def kinds_with_heads(result: Result) -> str:
    """Tokens per second of a real model by kind of prompt: suffix decoding, heads, both."""
    ways = {"suffix": "suffix decoding", "heads": "heads", "adaptive": "both"}
    head = ["tokens/s over HTTP (times plain)", "plain", *ways.values(), "tokens a round, heads"]
    rows = [
        [
            one["kind"],
            f"{one['tokens_per_s']['plain']:.0f}",
            *(f"{one['tokens_per_s'][w]:.0f} ({one['ratio_to_plain'][w]:.2f})" for w in ways),
            f"{one['tokens_per_round']['heads']:.2f}",
        ]
        for one in sorted(result["kinds"], key=lambda one: -one["ratio_to_plain"]["heads"])
    ]
    return "\n\n".join([table(head, rows), claims_table(result.content), result.made()])


def compare_drafts(result: Result) -> str:
    """Two draft models on the same answers: what is foretold of each, and how soon it decides."""
    head = ["draft model", "tokens a round", "drafted", "foretold less real", "tokens/s"]
    rows = [
        [
            name,
            f"{one['tokens_per_round']:.2f}",
            f"{one['num_drafted']} answers",
            _interval(one["foretold_less_real"]),
            f"{one['tokens_per_s']:,.0f}",
        ]
        for name, one in result["drafts"].items()
    ]
    first, second = result["drafts"]
    differences = (
        f"{first} less {second}, in tokens a round at k = {result['k']}: on the same "
        f"{result['num_answers']} answers {_interval(result['paired'])}, known after "
        f"{result['num_needed']}; by a split of them {_interval(result['split'])}."
    )
    return "\n\n".join(
        [table(head, rows), differences, claims_table(result.content), result.made()]
    )


def staged(result: Result) -> str:
    """Show how many passes the guesses save the draft model, and the resulting speed."""
    pair = str(result["settings"]["pair"])
    head = [pair, "guesses by", "tokens/s", "draft passes a token", "guessed", "right"]
    rows = []
    for line in result["lines"]:
        by_way = {"on": line} | {way: line[way] for way in ("smaller",) if way in line}
        for way, one in by_way.items():
            speed, passes = line["tokens_per_s"], line["passes"]
            rows.append(
                [
                    line["k"],
                    {"on": "suffix decoding", "smaller": "a smaller draft model"}[way],
                    f"{speed['off']:,.0f} -> {speed[way]:,.0f} ({one['gain']:.2f})",
                    f"{passes['off']:.2f} -> {passes[way]:.2f}",
                    f"{one['guessed']:.0f}",
                    f"{one['right']:.0f}",
                ]
            )
    return "\n\n".join([table(head, rows), result.made()])


def _interval(found: Mapping[str, float]) -> str:
    return f"{found['mean']:+.2f} ({found['low']:+.2f} to {found['high']:+.2f})"
