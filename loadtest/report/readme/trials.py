"""Figures of trials: hostile clients, fuzzing, clients that exist, sameness, faults, changes,
scaling, soak, overload. Most pass or fail; what was measured on the way is shown next to the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loadtest.report.readme.result import Result, goal, table

_UNKNOWN = "-"
_PATIENT = (
    " Requests might wait {:g} s for a replica, far longer than the shipped config lets them."
)


def hostile(result: Result) -> str:
    """Show the longest gap of any stream under each kind of attack."""
    ended = (
        f"{result['stream_answers']:,} answers of the streams; violations: "
        f"{len(result['violations'])}."
    )
    return f"{_gaps(result, result['ratio_to_quiet'])}\n\n{ended} {result.made()}"


def loop_gaps(result: Result) -> str:
    """Show how long the router's event loop is blocked by one attack, and by five at once."""
    limit = result["settings"]["limit_ms"]
    rows = []
    for length in dict.fromkeys(line["max_model_len"] for line in result["lines"]):
        lines = [line for line in result["lines"] if line["max_model_len"] == length]
        at_once = [line for line in lines if "at once" in line["attack"]]
        alone = [line for line in lines if line not in at_once and line["attack"] != "nothing"]
        cells = (_standstill(group, limit) for group in (alone, at_once))
        rows.append([f"{length:,} tokens", *(cell for group in cells for cell in group)])
    head = [
        "context",
        *("one body, median of the worst kind", "worst single gap"),
        *("five bodies at once, median", "worst single gap"),
    ]
    return f"{table(head, rows)}\n\n{result.made()}"


def fuzz(result: Result) -> str:
    """Cases and failures of each part of the fuzzer."""
    rows = [
        [
            part["part"],
            f"{part['counts']['cases']:,}",
            f"{part['length_s'] / 60:.0f} min",
            str(len(part["failures"]) + len(part["violations"])),
        ]
        for part in result["parts"]
    ]
    return f"{table(['part', 'cases', 'length', 'failures'], rows)}\n\n{result.made()}"


def clients(result: Result) -> str:
    """Checks that clients pass unmodified, and what they need that is not served."""
    rows = [
        [
            client["client"],
            client["version"],
            f"{client['num_passed']} of {client['num_checks']}",
            ", ".join(client["lacking"]),
            ", ".join([*client["failures"], *filter(None, [client.get("skipped")])]),
        ]
        for client in result["clients"]
    ]
    head = ["client", "version", "passed", "needs what is not served", "failed"]
    return f"{table(head, rows)}\n\n{result.made()}"


def same(result: Result) -> str:
    """Questions that got two texts, by what was compared and by temperature."""
    temperatures = result["settings"]["temperature"]
    rows = []
    for line in result["comparisons"]:
        at = [[one for one in line["by_task"] if one["temperature"] == t] for t in temperatures]
        counts = [
            f"{sum(one['num_differing'] for one in cells)} of "
            f"{sum(one['num_compared'] for one in cells)}"
            for cells in at
        ]
        low, high = line["interval"]
        rows.append([line["name"], *counts, f"{low:.1%} to {high:.1%}"])
    head = ["compared", *(f"T = {t:g}" for t in temperatures), "share that may differ, 95%"]
    drafted = ", ".join(
        f"{name} wrote {side['num_tokens']:,} tokens and had {side['num_draft_tokens']:,} drafted"
        for name, side in result["sides"].items()
    )
    return f"{table(head, rows)}\n\n{drafted}. {result.made()}"


def matrix(result: Result) -> str:
    """Show how drafts change answers, by parameter and constraint; and answers under schemas."""
    verdicts: dict[str, dict[str, set[str]]] = {}
    for cell in result["parameters"]:
        row = verdicts.setdefault(cell["parameter"], {})
        row.setdefault(cell["constraint"], set()).add(cell["verdict"])
    constraints = list(next(iter(verdicts.values())))
    rows = [
        [name, *(" or ".join(sorted(row[constraint])) for constraint in constraints)]
        for name, row in verdicts.items()
    ]
    counts = result["schemas"]
    share = goal(counts["finished_share"], "at least", result["least_finished"])
    schemas = (
        f"{counts['num_schemas']} random bounded schemas: {counts['num_answers']:,} answers at "
        f"temperature 1, {counts['finished_share']:.0%} finished ({share}), "
        f"{counts['num_valid']:,} of {counts['num_finished']:,} valid by `jsonschema`, "
        f"{counts['num_same']:,} of {counts['num_compared']:,} with drafts the same as without "
        f"({counts['num_drafted']:,} tokens drafted)."
    )
    head = ["parameter", *constraints]
    return f"{table(head, rows)}\n\n{schemas}\n\n{result.made()}"


def faults(result: Result) -> str:
    """Pauses of streams by the process that was killed or stopped."""
    rows = [
        [
            line["kind"],
            line["signal"],
            *(
                f"{line[f'pause_{kind}_median_s']:.1f} ({line[f'pause_{kind}_max_s']:.1f})"
                for kind in ("free", "constrained")
            ),
            str(line.get("num_refused", _UNKNOWN)),
            f"{line['num_problems']} of {line['num_faults']}",
        ]
        for line in result["summary"]
    ]
    head = [
        "process",
        "signal",
        "pause in s, free streams: median (longest)",
        "constrained streams",
        "answered 429 or 503",
        "texts lost or changed",
    ]
    patience = result["settings"].get("patience")
    waits = "" if patience is None else _PATIENT.format(patience)
    total = f"{len(result['faults'])} faults, {result['num_answers']:,} requests"
    left = f"left behind afterwards: {len(result['leftovers'])}"
    return f"{table(head, rows)}\n\n{total}; {left}.{waits} {result.made()}"


def rolling(result: Result) -> str:
    """Pauses of streams while a running service is changed, in seconds."""
    waits = result["longest_wait_without_changes_s"]
    rows = [["(no change)", f"{waits['free']:.1f}", f"{waits['constrained']:.1f}", "", ""]]
    for change in result["changes"]:
        pauses = [f"{change[f'pause_{kind}_s']:.1f}" for kind in ("free", "constrained")]
        problems = str(len(change["problems"]))
        rows.append([change["change"], *pauses, str(change["num_answers"]), problems])
    head = ["change", "pause in s, free streams", "constrained streams", "answers", "problems"]
    return f"{table(head, rows)}\n\n{result['num_answers']} requests. {result.made()}"


def scaling(result: Result) -> str:
    """Show the number of replicas of each deployment over time."""
    rows = [
        [name, ", ".join(f"{count} from {at:.0f} s" for at, count in steps)]
        for name, steps in result["replicas"].items()
    ]
    requests = f"{result['num_answers']} requests, {len(result['failures'])} failed."
    return f"{table(['deployment', 'replicas'], rows)}\n\n{requests} {result.made()}"


def soak(result: Result) -> str:
    """Growth of memory by process, and how requests ended."""
    limit = result["settings"]["limit"]
    rows = [
        [
            process["kind"],
            f"{process['growth']['early_mib']:.0f} MiB",
            f"{process['growth']['share']:+.1%}",
            goal(process["growth"]["share"], "at most", limit),
        ]
        for process in result["processes"]
        if process["is_judged"]
    ]
    kinds = result["requests"]["by_kind"].values()
    sums = {key: sum(kind[key] for kind in kinds) for key in ("ended", "turned_away", "failed")}
    requests = (
        f"{sums['ended']:,} requests ended, {sums['failed']} failed, {sums['turned_away']} got "
        f"429; all places were taken {result['saturation']:.0%} of the time."
    )
    head = ["process", "after the warm-up", "growth", "wanted (share)"]
    return f"{table(head, rows)}\n\n{requests} {result.made()}"


def overload(result: Result) -> str:
    """Goodput and refusals at rates of arrivals around and above what is sustained."""
    settings = result["settings"]
    stretches = [*result["search"], *result["overload"]]
    peak = max(line["goodput_per_s"] for line in stretches)
    rows = []
    for line in stretches:
        refusals = line["refusal_s"]
        rows.append(
            [
                f"{line['arrived_per_s']:.1f}",
                f"{line['goodput_per_s']:.1f}",
                f"{line['turned_away']:,}",
                "-" if refusals is None else _refusal(refusals, settings["refusal_limit"]),
                str(line["failed"]),
            ]
        )
    head = ["arrivals/s", "good answers/s", "got 429", "time to 429, median and p99", "failed"]
    share = stretches[-1]["goodput_per_s"] / peak
    kept = goal(share, "at least", 1 - settings["goodput_loss"])
    sustained = (
        f"{result['sustained_per_s']:g} arrivals/s are sustained; overloaded most, the service has "
        f"{share:.2f} of its best rate of good answers ({kept})."
    )
    return f"{table(head, rows)}\n\n{sustained} {result.made()}"


def locust(result: Result) -> str:
    """Times by kind of request as users see them, and who drafted."""
    by_name = {one["name"]: one for one in result["requests"]}
    kinds = result["drafts"]["kinds"]
    rows = [
        [
            kind,
            str(by_name[kind]["count"]),
            str(by_name[kind]["failures"]),
            *(
                f"{by_name[f'{kind}: {figure}']['median']:,.0f}"
                for figure in ("TTFT, ms", "inter-token latency, ms", "tokens/s")
            ),
            *_drafts(figures),
        ]
        for kind, figures in kinds.items()
    ]
    head = [
        *("request", "asked", "failed", "first token, ms", "between tokens, ms", "tokens/s"),
        *("k", "accepted", "drafted by"),
    ]
    words = result["drafts"]["in_words"]
    return f'{table(head, rows)}\n\nIts own last line: "{words}" {result.made()}'


def _drafts(figures: Mapping[str, Any]) -> list[str]:
    """Tokens a round with a draft, the share that was accepted, and who drafted."""
    k, acceptance = figures["k"], figures["acceptance"]
    drafted = figures["num_draft_tokens_by"]
    return [
        _UNKNOWN if k is None else f"{k:.1f}",
        _UNKNOWN if acceptance is None else f"{acceptance:.0%}",
        ", ".join(f"{name} {count:,}" for name, count in sorted(drafted.items())),
    ]


def _gaps(result: Result, kinds: Iterable[str]) -> str:
    """Ratios to the quiet run; the limit is one for all attacks at once."""
    limit = result["settings"]["gap_limit"]
    rows = []
    for kind in kinds:
        ratio = result["ratio_to_quiet"][kind]
        wanted = goal(ratio, "at most", limit) if kind == "all at once" else ""
        rows.append([kind, f"{result['longest_gap_s'][kind] * 1e3:.0f} ms", f"{ratio:.2f}", wanted])
    return table(["attack", "longest gap of a stream", "times quiet", "wanted"], rows)


def _standstill(lines: Sequence[Mapping[str, Any]], limit_ms: float) -> tuple[str, str]:
    """Show the largest median and the largest single gap of some attacks, each with its verdict."""
    median = max(line["median_ms"] for line in lines)
    worst = max(line["worst_ms"] for line in lines)
    return _judged(median, limit_ms), _judged(worst, limit_ms)


def _judged(value_ms: float, limit_ms: float) -> str:
    return f"{value_ms:.0f} ms ({goal(value_ms, 'at most', limit_ms)})"


def _refusal(refusals: Sequence[float], limit: float) -> str:
    median, p99 = refusals[0], refusals[1]
    return f"{median:.2f} s, {p99:.2f} s ({goal(p99, 'at most', limit)})"
