"""Figures of heads on the target."""

from __future__ import annotations

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
