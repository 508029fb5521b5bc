"""Figures of the studies that are kept: a guide for k by task, and what else each study found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.report.readme.result import RESULTS, Result, table

# Names of pairs on the pages, by folder of `loadtest/results`.
STUDIES: Mapping[str, str] = {
    "study-demo": "demo pair",
    "study-349m": "349M, three drafts",
    "study-smollm2": "SmolLM2-135M, prompt lookup",
}
# Common advice by kind of task, and the tasks of each kind.
_ADVICE: Mapping[str, tuple[str, Sequence[str]]] = {
    "code and JSON": ("5-7", ("code", "json", "coding", "extraction")),
    "text": (
        "2-4",
        ("text", "summaries", "context", "translation", "math", "reasoning", "knowledge"),
    ),
    "creative": ("1-3", ("creative", "writing", "roleplay")),
}
_UNKNOWN = "-"


def guide(seen_from: Path) -> str:
    """Show the best k of every task of every kept study, next to what is commonly advised."""
    rows = []
    for kind, (advised, tasks) in _ADVICE.items():
        for study, result in _kept(seen_from):
            by_task = {one["task"]: one for one in result["findings"]["choices"]}
            for task in (task for task in tasks if task in by_task):
                rows.append([f"{kind}: {task}", study, advised, *_choice(by_task[task])])
    head = [
        *("task", "pair", "advised k", "draft", "best k (as good)", "times plain"),
        *("k chosen live", "accepted, a", "best k by theory at c = 0.05"),
    ]
    made = [
        f"[Report]({result.link_to('report.md')}): {result.made()}"
        for _, result in _kept(seen_from)
    ]
    return "\n\n".join([table(head, rows), *made])


def in_short(seen_from: Path) -> str:
    """Show every kept study: cost ratio, batch, short and long answers, structure, ablation."""
    rows = [[study, *_facts(result)] for study, result in _kept(seen_from)]
    head = [
        *("pair", "draft", "c", "runs within a fifth of E / (1 + k c)", "with longer passes"),
        "a fixed k pays up to batch",
        *("8 tokens, best k", "20", "200", "JSON schema: cost without drafts", "gain with best k"),
    ]
    return table(head, rows)


def _kept(seen_from: Path) -> Iterator[tuple[str, Result]]:
    for name, study in STUDIES.items():
        if (RESULTS / name / "study.json").exists():
            yield study, Result.load(f"{name}/study", seen_from)


def _choice(choice: Mapping[str, Any]) -> list[str]:
    low, high = choice["as_good"]
    rate, theory = choice["acceptance"], choice["best_k_at_low_cost"]
    return [
        choice["draft"],
        str(choice["k"]) if low == high else f"{choice['k']} ({low}-{high})",
        f"{choice['speed_up']:.2f}",
        f"{choice['adaptive']:.2f}",
        _UNKNOWN if rate is None else f"{rate:.2f}",
        _UNKNOWN if theory is None else str(theory),
    ]


def _facts(result: Result) -> list[str]:
    findings, parts = result["findings"], result["parts"]
    draft = findings["draft"]
    costs = parts.get(f"costs/{draft}")
    last = findings["last_paying_batch"]
    near = findings["shares_near_theory"] or {}
    has_batches = any(name.startswith("batch/") for name in parts)
    return [
        draft,
        _UNKNOWN if costs is None else f"{costs['cost_ratio']:.2f}",
        *(f"{near[form]:.0%}" if near else _UNKNOWN for form in ("speed_up", "with_growth")),
        _UNKNOWN if not has_batches else "none" if last is None else str(last),
        *(_best_fixed(parts.get(f"lengths/{draft}/{length}")) for length in (8, 20, 200)),
        *_structure(parts.get(f"structure/{draft}")),
    ]


def _best_fixed(part: Mapping[str, Any] | None) -> str:
    if part is None:
        return _UNKNOWN
    fixed = [line for line in part["lines"] if line["way"] not in ("k=0", "adaptive")]
    return f"{max(line['speed_up'] for line in fixed):.2f}"


def _structure(part: Mapping[str, Any] | None) -> tuple[str, str]:
    """Plain decoding under a schema over free, and the best k under one over plain under one."""
    if part is None or not part["lines"]:
        return _UNKNOWN, _UNKNOWN
    speed = {line["way"]: line["speed_up"] for line in part["lines"]}
    held = speed.pop("schema, k=0")
    best = max(value for way, value in speed.items() if way.startswith("schema, k="))
    return f"{held:.2f}", f"{best / held:.2f}"
