"""Figures of the page on when to use what: expected beside measured, temperature, memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from loadtest.report.readme.result import Result, table

_STUDIES = {"study-349m": "349M and drafts", "study-demo": "demo pair"}
_KINDS = {"smollm2-kinds": "k=5", "smollm2-heads": "adaptive"}  # by result, the way that is shown
# The rows by use: times plain decoding and k as they are commonly expected, the task of the
# studies, and the closest kind of prompt.
_USES: Mapping[str, tuple[tuple[float, float] | None, str, str, str]] = {
    "code": ((2.5, 3.5), "5-7", "code", "coding"),
    "JSON": (None, "5-7", "json", "extraction"),
    "stories": ((2.0, 3.0), "1-3", "creative", "writing"),
    "chat": ((1.5, 2.5), "2-4", "text", "roleplay"),
    "technical questions": ((1.8, 2.8), "2-4", "", "knowledge"),
}
_UNKNOWN = "-"
_SIZES = ("weight_bytes", "kv_bytes_per_token")


def expected_by_use(seen_from: Path) -> str:
    """Speed-ups that are commonly expected of a use, next to those of the kept results."""
    kept = {name: Result.load(f"{name}/study", seen_from) for name in _STUDIES}
    kinds = {name: Result.load(name, seen_from) for name in _KINDS}
    rows, reached = [], []
    for use, (expected, advised, task, kind) in _USES.items():
        cells = [_of_study(result, task) for result in kept.values()]
        cells += [_of_kind(result, kind, _KINDS[name]) for name, result in kinds.items()]
        if expected is not None:
            reached += [value >= expected[0] for value, _ in cells if value is not None]
        shown = _UNKNOWN if expected is None else f"{expected[0]:.1f}-{expected[1]:.1f}"
        rows.append([use, f"{shown}, k {advised}", *(text for _, text in cells)])
    head = [
        *("use", "expected, k advised", *_STUDIES.values()),
        *("SmolLM2, prompt lookup, k = 5", "SmolLM2, suffix and MTP head, adaptive k"),
    ]
    sources = [
        f"{_STUDIES[name]}: [report]({each.link_to('report.md')}), {each.made_in_short()}"
        for name, each in kept.items()
    ]
    sources += [f"SmolLM2: {each.made()}" for each in kinds.values()]
    said = f"{sum(reached)} of {len(reached)} measured values reach what is expected."
    return "\n\n".join([table(head, rows), said, *sources])


def acceptance_by_temperature(seen_from: Path) -> str:
    """Acceptance rates of the studies' drafts by temperature, by task."""
    rows, heats = [], []
    kept = {name: Result.load(f"{name}/study", seen_from) for name in _STUDIES}
    for name, result in kept.items():
        for part_name, part in result["parts"].items():
            section, _, of = part_name.partition("/")
            if section != "acceptance":
                continue
            draft, _, task = of.partition("/")
            heats = [one["temperature"] for one in part["temperatures"]]
            rates = [f"{one['acceptance']['value']:.2f}" for one in part["temperatures"]]
            rows.append([f"{_STUDIES[name]}: {draft}, {task}", *rates])
    head = ["acceptance rate", *(f"T = {heat:g}" for heat in heats)]
    return "\n\n".join([table(head, rows), *(f"{each.made()}" for each in kept.values())])


def draft_sampling(result: Result) -> str:
    """Acceptance rates of sampled and of greedy drafts, by rule and temperature."""
    rates = {
        (study["workload"], study["rule"]): study["analysis"]["acceptance"]
        for study in result["studies"]
    }
    rules = [rule for rule in dict.fromkeys(rule for _, rule in rates) if "," not in rule]
    workloads = list(dict.fromkeys(workload for workload, _ in rates))
    rows = [
        [rule, *(_rate(rates[workload, name]) for workload in workloads for name in names)]
        for rule in rules
        for names in [(rule, f"{rule}, greedy draft")]
    ]
    head = [f"{workload}, {how}" for workload in workloads for how in ("sampled", "greedy")]
    return f"{table(['acceptance rate', *head], rows)}\n\n{result.made()}"


def _rate(estimate: Mapping[str, float]) -> str:
    return f"{estimate['value']:.2f} ({estimate['low']:.2f}-{estimate['high']:.2f})"


def batches(result: Result) -> str:
    """Speed with drafts over that without, by sessions at once, in one process."""
    (pair,) = result["pairs"].values()
    speed = {
        (line["way"], line["batch"]): line["tokens_per_s"]
        for line in pair["lines"]
        if line["where"] == "engine"
    }
    sizes = sorted({batch for _, batch in speed})
    ways = {"k=3": "k = 3", "k=5": "k = 5", "adaptive": "adaptive k"}
    rows = [
        [name, *(f"{speed[way, batch] / speed['k=0', batch]:.2f}" for batch in sizes)]
        for way, name in ways.items()
    ]
    head = ["times plain decoding, 349M and 18M", *(f"batch {batch}" for batch in sizes)]
    return f"{table(head, rows)}\n\n{result.made()}"


def memory(result: Result) -> str:
    """Memory with and without a draft model, by the estimate that `--check` makes."""
    texts, tokens = result["settings"]["texts"], result["settings"]["tokens"]
    rows = []
    for pair in result["pairs"]:
        sizes = [pair[model][key] for key in _SIZES for model in ("target", "draft")]
        alone, together = pair["without_bytes"], pair["with_bytes"]
        more = f"{together / alone - 1:.0%}"
        rows.append([pair["pair"], *map(_bytes, [*sizes, alone, together]), more])
    head = [
        *("target, draft", "weights, target", "draft", "KV a token, target", "draft"),
        f"{texts} texts of {tokens:,} tokens: without a draft",
        *("with one", "more"),
    ]
    return f"{table(head, rows)}\n\n{result.made()}"


def _of_study(result: Result, task: str) -> tuple[float | None, str]:
    for choice in result["findings"]["choices"]:
        if choice["task"] == task:
            drafted = f"k {choice['k']}" if choice["k"] else "no drafts"
            return choice["speed_up"], f"{choice['speed_up']:.2f} ({drafted})"
    return None, _UNKNOWN


def _of_kind(result: Result, kind: str, way: str) -> tuple[float | None, str]:
    for each in result["kinds"]:
        if each["kind"] == kind:
            ratio = each["ratio_to_plain"][way]
            return ratio, f"{ratio:.2f} ({kind})"
    return None, _UNKNOWN


def _bytes(number: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number / 1e3:.3g} kB"
