"""Figures of look-aheads: what each way satisfies and costs, of every pair that is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loadtest.report.readme.result import RESULTS, Result, goal, table

Content = Mapping[str, Any]

SPEED = "tokens/s, cdsl / cdlh"
_BEST_SPEED = 6.0  # goal of one pair
_NOTHING = "No result is kept yet."
_ALIKE = (
    "In each table CDLH commits as much as the CDSL below it: a token (`paper`), or as much of a "
    "roll-out as gains. Ratios are of prompts together, with 95% intervals by paired bootstrap."
)


def lookahead(seen_from: Path) -> str:
    """Satisfaction and cost of every way, by pair and task; the claims behind them."""
    blocks, speeds = [_ALIKE], dict[str, float]()
    for name, task, result in _kept(seen_from, "compare"):
        blocks += [f"{name}, {task}:", compared(result.content), aims(result.content)]
        blocks.append(result.made())
        speeds |= {
            f"{name}, {task}, {claim['text'].removesuffix(f': {SPEED}')}": claim["value"]
            for claim in result["claims"]
            if claim["text"].endswith(SPEED)
        }
    if speeds:
        best = max(speeds, key=lambda name: speeds[name])
        reached = goal(speeds[best], "at least", _BEST_SPEED)
        blocks.append(f"{SPEED}, the best of these ({best}): {speeds[best]:.2f} ({reached}).")
    return "\n\n".join(blocks) if len(blocks) > 1 else _NOTHING


def lookahead_by_pair(seen_from: Path) -> str:
    """Thresholds and rules of verification, one pair beside another."""
    rows, made = [], []
    for name, task, result in _kept(seen_from, "thresholds"):
        for rule, part in result["rules"].items():
            for line in part["lines"]:
                if line["is_best"]:
                    a_t, r_t = (line["terms"][f"{one}_threshold"] for one in ("accept", "reward"))
                    cost = f"{line['passes_per_token']:.2f}"
                    cells = [f"{a_t:g}, {r_t:g}", percent(line["hard"]), cost]
                    cdlh = part["cdlh"]
                    beside = [percent(cdlh["hard"]), f"{cdlh['passes_per_token']:.2f}"]
                    rows.append([f"{name}, {task}", rule, *cells, *beside])
        made.append(f"[Trade-off curves]({result.link_to('lookahead.png')}): {result.made()}")
    head = ["pair, task", "rule", "a_t, r_t", "hard satisfaction", "passes a token"]
    tables = [table([*head, "of cdlh", "passes of cdlh"], rows)] if rows else []
    rules = []
    for name, _, result in _kept(seen_from, "verification"):
        for task, part in result["tasks"].items():
            hard, sampled = part["lines"]
            shares = [percent(hard["hard"]), percent(sampled["hard"])]
            less = interval(part["sampling_less_hard"])
            rules.append([name, task, *shares, less, times(part["passes_hard_to_sampling"])])
        made.append(result.made())
    if rules:
        head = ["pair", "task", "hard rejection", "speculative sampling", "sampling less hard"]
        tables.append(table([*head, "passes, hard / sampling"], rules))
    return "\n\n".join([*tables, *made]) or _NOTHING


def lookahead_drafts(seen_from: Path) -> str:
    """Drafts of different sizes for one target."""
    blocks = []
    for _, task, result in _kept(seen_from, "drafts"):
        settings = result["settings"]  # the first draft pair's; all have its target
        target = f"{settings['family']}, {millions(settings['target_parameters'])}"
        blocks += [
            f"a target ({target}), {task}:",
            drafts_table(result.content),
            "As often as they agree here, by the cost curves of larger pairs (none is measured):",
            prices_table(result.content),
            result.made(),
        ]
    return "\n\n".join(blocks) or _NOTHING


def compared(content: Content) -> str:
    """Show the table of one comparison.

    Rows of a table of its own have its name.
    """
    rows = []
    for line in content["lines"]:
        speed = f"{line['tokens_per_s']:.0f}" if "tokens_per_s" in line else "-"
        rows.append(
            [
                line["table"],
                line["way"],
                "" if line["terms"]["method"] == "off" else line["terms"]["commit"],
                thresholds_of(line["terms"]),
                percent(line["hard"]),
                f"{line['soft']:.2f}",
                f"{line['passes_per_token']:.2f}",
                speed,
                f"{line['logprob']:.2f}",
                f"{line['distinct_1']:.2f}, {line['distinct_2']:.2f}",
            ]
        )
    head = ["table", "way", "commits", "a_t, r_t", "hard satisfaction", "soft"]
    costs = ["target passes a token", "tokens/s, one at a time"]
    return table([*head, *costs, "target's log-probability a token", "distinct 1-, 2-grams"], rows)


def drafts_table(content: Content) -> str:
    """Show the table of drafts of one target, CDLH first."""
    cdlh = content["cdlh"]
    cost = f"{cdlh['passes_per_token']:.2f}"
    rows = [["cdlh", "", "", "", percent(cdlh["hard"]), cost, "", "", ""]]
    rows += [
        [
            line["draft"],
            millions(line["draft_parameters"]),
            f"{line['step_cost']:.3f}",
            f"{line['step_ms']:.2f} ms, {line['measured_step_cost']:.2f}",
            percent(line["hard"]),
            f"{line['passes_per_token']:.2f}",
            f"{line['draft_steps_per_token']:.2f}",
            times(line["passes_to_cdlh"]),
            f"{line['by_weights']:.1f}",
        ]
        for line in content["lines"]
    ]
    head = ["draft", "parameters", "of the target's weights", "a step, measured; of a pass"]
    costs = ["hard satisfaction", "passes a token", "draft steps a token"]
    return table([*head, *costs, "cdlh's passes / its", "with its steps, by weights"], rows)


def prices_table(content: Content) -> str:
    """Show what the counts of each draft would take with larger pairs."""
    priced = [
        [
            line["counts_of"],
            f"{line['target_billions']:g}B, {line['draft_billions']:g}B",
            *(f"{line[key]:.1f}" for key in ("cdlh_ms", "cdsl_ms", "speed_up")),
        ]
        for line in content["priced"]
    ]
    return table(["counts of", "pair", "cdlh, ms a token", "cdsl", "times faster"], priced)


def thresholds_of(terms: Mapping[str, Any]) -> str:
    """Show the thresholds of CDSL; "" for another way."""
    if terms["method"] != "cdsl":
        return ""
    return f"{terms['accept_threshold']:g}, {terms['reward_threshold']:g}"


def percent(share: Mapping[str, float]) -> str:
    """Show a share with its interval."""
    return f"{share['value']:.0%} ({share['low']:.0%} to {share['high']:.0%})"


def interval(found: Mapping[str, float]) -> str:
    """Show a difference of shares, in points."""
    low, value, high = (100 * found[key] for key in ("low", "value", "high"))
    return f"{value:+.0f} ({low:+.0f} to {high:+.0f})"


def times(found: Mapping[str, float]) -> str:
    """Show a ratio with its interval."""
    return f"{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def millions(number: int) -> str:
    """Show a number of parameters."""
    return f"{number / 1e6:.2g}M" if number < 1e7 else f"{number / 1e6:.0f}M"


def aims(content: Content) -> str:
    """Show the aims of a comparison and the value of each table, with intervals."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for claim in content["claims"]:
        name, _, text = claim["text"].partition(": ")
        found.setdefault(text, {})[name] = claim
    names = list(dict.fromkeys(name for by_name in found.values() for name in by_name))
    rows = []
    for text, by_name in found.items():
        claim = next(iter(by_name.values()))
        cells = [_measured(by_name[name]) for name in names]
        rows.append([text, f"{claim['relation']} {claim['goal']:g}", *cells])
    return table(["aim", "wanted", *names], rows)


def _measured(claim: Mapping[str, Any]) -> str:
    low, high = claim["interval"]
    value = times({"value": claim["value"], "low": low, "high": high})
    return f"{value}: {'met' if claim['is_met'] else '**missed**'}"


def aim(claim: Mapping[str, Any]) -> str:
    """Show the measured value with its interval, and the aim with its verdict."""
    value = f"{claim['value']:.2f}"
    if "interval" in claim:
        low, high = claim["interval"]
        value += f" ({low:.2f} to {high:.2f})"
    return f"{claim['text']}: {value}, {goal(claim['value'], claim['relation'], claim['goal'])}"


def _kept(seen_from: Path, experiment: str) -> Iterator[tuple[str, str, Result]]:
    """Yield the pair, the task and the result, of all folders of look-aheads."""
    for file in sorted(RESULTS.glob(f"lookahead-*/{experiment}*.json")):
        task = file.stem.removeprefix(experiment).removeprefix("-")
        result = Result.load(f"{file.parent.name}/{file.stem}", seen_from)
        yield _named(result["settings"]), task, result


def _named(settings: Mapping[str, Any]) -> str:
    """Show a pair by its label, and by its family and sizes if the record has them."""
    if "family" not in settings:
        return str(settings["pair"])
    sizes = (millions(settings[f"{part}_parameters"]) for part in ("target", "draft"))
    return f"{settings['pair']} ({settings['family']}, {', draft '.join(sizes)})"
