"""Figures of speed: the bench, kinds of prompt, the quantised draft, acceptance."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.report.readme.result import Result, claims_table, goal, table

_PLACES = {
    "engine": "in one process",
    "link": "a process each for draft and target",
    "http": "over HTTP",
}
_IN_SHORT = ("extraction", "context", "math", "knowledge")  # kinds of prompt, best to worst


def bench(result: Result) -> str:
    """Tokens per second of every way that was run, and what was aimed for."""
    (pair,) = result["pairs"].values()
    batches = sorted({line["batch"] for line in pair["lines"]})
    rows = [
        [f"{_PLACES[place]}, {_way(way)}", *_speeds(pair, place, way, batches)]
        for place, way in dict.fromkeys((line["where"], line["way"]) for line in pair["lines"])
    ]
    speeds = table(["tokens/s", *(f"batch {batch}" for batch in batches)], rows)
    return f"{speeds}\n\n{claims_table(pair)}\n\n{result.made()}"


def long_prompt(result: Result) -> str:
    """Show how a long prompt of another client changes the gaps of one stream."""
    (pair,) = result["pairs"].values()
    limits = {
        claim["text"].split(":")[0]: claim for claim in pair["claims"] if "gap" in claim["text"]
    }
    rows = []
    for way, claim in limits.items():
        runs = [gaps for gaps in pair["gaps"] if gaps["way"] == way]
        rows.append(
            [
                _way(way),
                f"{claim['value']:.2f} ({goal(claim['value'], claim['relation'], claim['goal'])})",
                f"{max(run['beside_worst_ms'] for run in runs) / 1e3:.2f} s",
                f"{_median(runs, 'first_token_s'):.1f} s",
                f"{_median(runs, 'alone_first_token_s'):.1f} s",
            ]
        )
    head = [
        f"with a prompt of {pair['gaps'][0]['num_prompt_tokens']:,} tokens next to the stream",
        "the stream's gaps, times those without",
        "worst single gap",
        "first token of the prompt",
        "the same, alone",
    ]
    return f"{table(head, rows)}\n\n{result.made()}"


def kinds(result: Result) -> str:
    """Tokens per second by kind of prompt, plain, with k = 5 and adaptive."""
    rows = _kinds(result, [kind["kind"] for kind in result["kinds"]])
    return f"{rows}\n\n{result.made()}"


def kinds_in_short(result: Result) -> str:
    """Show the same for four kinds, ordered by the gain of drafting."""
    return f"{_kinds(result, _IN_SHORT)}\n\n{result.made_in_short()}"


def quantized(result: Result) -> str:
    """Times of a draft's passes with 8-bit weights over those without, and acceptance."""
    passes = result["passes"]
    sizes = list(dict.fromkeys((line["num_sessions"], line["num_rows"]) for line in passes))
    head = ["time with int8, times bfloat16", *(_pass_name(*size) for size in sizes)]
    by_line = {
        (line["pair"], line["num_threads"], line["num_sessions"], line["num_rows"]): line["ratio"]
        for line in passes
    }
    rows = [
        [f"{pair}, {threads} thread{'s' if threads > 1 else ''}"]
        + [f"{by_line[pair, threads, *size]:.2f}" for size in sizes]
        for pair, threads in dict.fromkeys((line["pair"], line["num_threads"]) for line in passes)
    ]
    return f"{table(head, rows)}\n\n{_acceptance_by_weights(result)}\n\n{result.made()}"


def acceptance(result: Result) -> str:
    """Tokens per round at k = 4 next to what two formulas predict of the measured acceptance."""
    head = ["k = 4", "acceptance rate", "tokens per round", "constant rate", "by position"]
    rows = []
    for study in result["studies"]:
        analysis = study["analysis"]
        line = next(line for line in analysis["lines"] if line["k"] == 4)
        values = [line["measured"]["value"], line["constant"], line["by_position"]]
        rows.append(
            [
                f"{study['workload']}, {study['rule']}",
                f"{analysis['acceptance']['value']:.2f}",
                *(f"{value:.2f}" for value in values),
            ]
        )
    return f"{table(head, rows)}\n\n{result.made()}"


def simulated(result: Result) -> str:
    """Tokens per second of two ways to choose k, over those of the best fixed k, by machine."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in result["samples"]:
        groups.setdefault(line["name"].split()[0], []).append(line)
    rows = []
    for machine, lines in groups.items():
        cells = []
        for policy in ("joint", "alone"):
            shares = [line[f"{policy}_share"] for line in lines]
            worst = lines[shares.index(min(shares))]["name"].removeprefix(machine).strip()
            cells += [f"{statistics.median(shares):.2f}", f"{min(shares):.2f} ({worst})"]
        rows.append([machine, str(len(lines)), *cells])
    head = ["simulated machine", "scenarios", "planned together: median", "worst"]
    return f"{table([*head, 'each session alone: median', 'worst'], rows)}\n\n{result.made()}"


def _kinds(result: Result, shown: Sequence[str]) -> str:
    head = [
        "tokens/s over HTTP (times k = 0)",
        "k = 0",
        "k = 5",
        "adaptive k",
        "tokens a round, k = 5",
    ]
    rows = []
    kinds = sorted(
        (kind for kind in result["kinds"] if kind["kind"] in shown),
        key=lambda kind: -kind["ratio_to_plain"]["k=5"],
    )
    for kind in kinds:
        speed, ratio = kind["tokens_per_s"], kind["ratio_to_plain"]
        drafted = [f"{speed[way]:.0f} ({ratio[way]:.2f})" for way in ("k=5", "adaptive")]
        in_round = f"{kind['tokens_per_round']['k=5']:.1f}"
        rows.append([kind["kind"], f"{speed['plain']:.0f}", *drafted, in_round])
    return table(head, rows)


def _lines(pair: Mapping[str, Any], place: str, batch: int) -> list[dict[str, Any]]:
    return [line for line in pair["lines"] if (line["where"], line["batch"]) == (place, batch)]


def _speeds(pair: Mapping[str, Any], place: str, way: str, batches: Sequence[int]) -> list[str]:
    found = {
        line["batch"]: line["tokens_per_s"]
        for line in pair["lines"]
        if (line["where"], line["way"]) == (place, way)
    }
    return [f"{found[batch]:,.0f}" if batch in found else "-" for batch in batches]


def _way(way: str) -> str:
    """`assisted k=5` as a reader knows it."""
    way = re.sub(r"\bk=(\d+)", r"k = \1", way)
    way = way.replace("bare engine", "the engine without the router")
    return way.replace("assisted", "transformers with `assistant_model`,")


def _median(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.median(run[key] for run in runs)


def _pass_name(num_sessions: int, num_rows: int) -> str:
    sessions = f"{num_sessions} session{'s' if num_sessions > 1 else ''}"
    return sessions if num_rows == 1 else f"{num_rows} rows of a prompt"


def _acceptance_by_weights(result: Result) -> str:
    rates = {
        (line["pair"], line["temperature"], line["quantization"]): line["rate"]
        for line in result["acceptance"]
    }
    rows = [
        [f"{pair}, temperature {temperature:g}"]
        + [f"{rates[pair, temperature, weights]:.3f}" for weights in (None, "int8")]
        for pair, temperature in dict.fromkeys((pair, heat) for pair, heat, _ in rates)
    ]
    return table([f"acceptance rate, k = {result['k']}", "bfloat16", "int8"], rows)


def forced(result: Result) -> str:
    """Tokens per second under schemas with forced text drafted, next to the same without."""
    ways = ("plain", "k=3", "adaptive")
    names = {"plain": "no draft model", "k=3": "k = 3", "adaptive": "adaptive k"}
    head = ["schema", "forced and accepted", *(names[way] for way in ways), "to no grammar, plain"]
    rows = []
    for one in result["schemas"]:
        speed = one["tokens_per_s"]
        cells = [
            f"{speed[way]:,.0f} -> {speed[f'{way}, forced']:,.0f} ({one['gain'][way]:.2f})"
            for way in ways
        ]
        share = f"{one['forced_share']:.0%} of {one['num_tokens']} tokens"
        rows.append([one["schema"], share, *cells, f"{one['to_no_grammar']['plain, forced']:.2f}"])
    verdicts = [
        f"{claim['text']}: {claim['value']:.2f} "
        f"({goal(claim['value'], claim['relation'], claim['goal'])})."
        for claim in result["claims"]
    ]
    return "\n\n".join([table(head, rows), *verdicts, result.made()])


def claims(result: Result) -> str:
    """Show the aims and the measured values."""
    return f"{claims_table(result.content)}\n\n{result.made()}"
