"""The report of what is kept of a pair: one page of Markdown beside its picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from loadtest.lookahead import plot
from loadtest.lookahead.tasks import TASKS
from loadtest.report.readme.lookahead import (
    Content,
    aims,
    compared,
    drafts_table,
    interval,
    millions,
    percent,
    times,
)
from loadtest.report.readme.result import claims_table, table

FILE = "report.md"


def write_page(folder: Path) -> Path:
    """Draw and write the page of all results of a folder; its path."""
    kept = load(folder)
    has_picture = plot.draw(kept, folder)
    path = folder / FILE
    path.write_text(render(kept, has_picture), encoding="utf-8")
    return path


def load(folder: Path) -> dict[str, Content]:
    """Read the results of a folder by the names of their files.

    Raises:
        ValueError: there are none, or one is not a result.
    """
    kept = {}
    for file in sorted(folder.glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        if not {"command", "settings"} <= content.keys():
            raise ValueError(f"{file.name} is no result: it has no command and settings")
        kept[file.stem] = content
    if not kept:
        raise ValueError(f"{folder.name!r} has no results")
    return kept


def render(kept: Mapping[str, Content], has_picture: bool) -> str:
    """Render the page."""
    pairs = dict.fromkeys(content["settings"]["pair"] for content in kept.values())
    lines = [
        f"# Look-aheads of {', '.join(pairs)}",
        "",
        "Passes are the target's, those of one text that follow each other. CDLH commits as much "
        "as the CDSL beside it. Intervals are of 95%: Wilson's for hard satisfaction, paired "
        "bootstrap over prompts for differences and ratios.",
    ]
    if has_picture:
        lines += ["", f"![Satisfaction and cost]({plot.FILE})"]
    for name, content in kept.items():
        kind, _, task = name.partition("-")
        if kind not in _SECTIONS:
            continue
        heading, body = _SECTIONS[kind]
        says = f": {task}, {TASKS[task].says}" if task in TASKS else ""
        lines += ["", f"## {heading}{says}", "", *body(content), "", _made(content)]
    return "\n".join([*lines, ""])


def _compare(content: Content) -> Iterator[str]:
    yield compared(content)
    yield ""
    yield aims(content)


def _thresholds(content: Content) -> Iterator[str]:
    rows = [["", "", "greedy", *_costs(content["greedy"]), ""]]
    for rule, part in content["rules"].items():
        rows.append([rule, "", "cdlh", *_costs(part["cdlh"]), ""])
        for line in part["lines"]:
            a_t, r_t = (line["terms"][f"{name}_threshold"] for name in ("accept", "reward"))
            mark = "yes" if line["is_best"] else ""
            rows.append([rule, f"{a_t:g}", f"{r_t:g}", *_costs(line), mark])
    yield table(["rule", "a_t", "r_t", "hard", "soft", "passes a token", "on the frontier"], rows)


def _verification(content: Content) -> Iterator[str]:
    rows = []
    for task, part in content["tasks"].items():
        for line in part["lines"]:
            rows.append([task, line["rule"].replace("_", " "), *_costs(line), "", ""])
        rows[-1][-2] = interval(part["sampling_less_hard"])
        rows[-1][-1] = times(part["passes_hard_to_sampling"])
    head = ["task", "rule", "hard", "soft", "passes a token"]
    yield table([*head, "sampling less hard", "passes, hard / sampling"], rows)


def _lengths(content: Content) -> Iterator[str]:
    rows = [[str(line["length"]), line["way"], *_costs(line)] for line in content["lines"]]
    yield table(["d", "way", "hard", "soft", "passes a token"], rows)


def _batch(content: Content) -> Iterator[str]:
    rows = [
        [str(line["sessions"]), f"{line['tokens_per_s']:.0f}", f"{line['to_first']:.2f}"]
        for line in content["lines"]
    ]
    yield table(["sessions at once", "tokens/s of all", "times the first"], rows)
    yield ""
    streams = [[line["beside"], f"{line['tokens_per_s']:.0f}"] for line in content["streams"]]
    yield table(["an ordinary stream beside", "its tokens/s"], streams)
    yield ""
    yield claims_table(content)


def _drafts(content: Content) -> Iterator[str]:
    target = content["target"]
    yield (
        f"The target: {millions(target['target_parameters'])} parameters, a pass of one row "
        f"{target['pass_ms']:.2f} ms."
    )
    yield ""
    yield drafts_table(content)
    yield ""
    yield "As often as they agree here, by the cost curves of larger pairs (none is measured):"
    yield ""
    priced = [
        [
            line["counts_of"],
            f"{line['target_billions']:g}B, {line['draft_billions']:g}B",
            *(f"{line[key]:.1f}" for key in ("cdlh_ms", "cdsl_ms", "speed_up")),
        ]
        for line in content["priced"]
    ]
    yield table(["counts of", "pair", "cdlh, ms a token", "cdsl", "times faster"], priced)


def _tune(content: Content) -> Iterator[str]:
    found, held = content["expected"], content["held_out"]
    yield f'`"lookahead": {json.dumps(content["lookahead"])}`'
    yield ""
    rows = [
        [
            "validation",
            f"{found['hard']:.0%}",
            f"{found['hard_of_cdlh']:.0%}",
            f"{found['cost']:.2f}",
            f"{found['cost_of_cdlh']:.2f}",
        ],
        [
            "held out",
            percent(held["cdsl"]["hard"]),
            percent(held["cdlh"]["hard"]),
            f"{held['cost']:.2f}",
            f"{held['cost_of_cdlh']:.2f}",
        ],
    ]
    yield table(["prompts", "hard", "hard of cdlh", "cost, passes a token", "of cdlh"], rows)


_SECTIONS: Mapping[str, tuple[str, Callable[[Content], Iterator[str]]]] = {
    "compare": ("Ways", _compare),
    "thresholds": ("Thresholds", _thresholds),
    "verification": ("Hard rejection and sampling", _verification),
    "lengths": ("Length d", _lengths),
    "batch": ("Batch", _batch),
    "drafts": ("Draft sizes", _drafts),
    "tune": ("Tuned", _tune),
}


def _costs(line: Mapping[str, Any]) -> list[str]:
    return [percent(line["hard"]), f"{line['soft']:.2f}", f"{line['passes_per_token']:.2f}"]


def _made(content: Content) -> str:
    machine = content["machine"]
    return (
        f"`{content['command']}`, {machine['date']}, {machine['processor']}, "
        f"{machine['cores']} cores, torch {machine['torch']}."
    )
