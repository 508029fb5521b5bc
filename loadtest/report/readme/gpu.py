"""Figures of the hours on a GPU: speed, passes, draws, attention, graphs and tests."""

from __future__ import annotations

from typing import Any

from loadtest.report.readme.result import Result, table

_8_BITS = ("int8", "fp8")


def speed(result: Result) -> str:
    """Show tokens a second by batch and way, and where a round's time goes."""
    rows = []
    for name, lines in (
        ("8B and 1B", result["parts"]["one-card"]["answer"]["lines"]),
        ("1B and a small one", result["smaller_pair"]["one-card"]["answer"]["lines"]),
    ):
        plain = {line["batch"]: line["tokens_per_s"] for line in lines if line["way"] == "k=0"}
        rows += [
            [
                *(name, str(line["batch"]), line["way"], f"{line['tokens_per_s']:,.0f}"),
                f"{line['tokens_per_s'] / plain[line['batch']]:.2f}",
                f"{line['acceptance']:.2f}",
                *(f"{line['split_ms'][part]:.1f}" for part in ("draft", "verify", "link")),
            ]
            for line in lines
        ]
    head = ["pair", "texts at once", "way", "tokens/s", "times plain", "acceptance"]
    head += [f"{part}, ms a round" for part in ("draft", "verify", "link")]
    return f"{table(head, rows)}\n\n{result.made()}"


def passes(result: Result) -> str:
    """Show times of passes of the 8B target beside reading its weights once."""
    answer = result["parts"]["passes"]["answer"]
    rows = []
    for line in answer["lines"]:
        floor = "-" if line["products"] in _8_BITS else f"{line['of_floor']:.2f}"
        invariant = "yes" if answer["self_test"][line["products"]] else "no"
        rows.append(
            [
                *(line["products"], line["graphs"], str(line["num_rows"])),
                *(f"{line['pass_ms']:.2f}", floor, invariant),
            ]
        )
    head = ["products", "graphs", "rows", "pass, ms", "times reading the weights", "same bits"]
    floor_ms = answer["floors_ms"]["plain"]
    launched = ", ".join(
        f"{line['num_launches']} launches and {line['busy_ms'] / line['pass_ms']:.0%} busy with "
        f"graphs {line['graphs']}"
        for line in result["parts"]["launches"]["answer"]["lines"]
    )
    return (
        f"{table(head, rows)}\n\n"
        f"Reading the weights takes {floor_ms:.2f} ms at the speed of a copy. "
        f"A pass of 48 rows under a profiler: {launched}."
    )


def draws(result: Result) -> str:
    """Show times of a draw by its terms, and of the cut before and after its mend."""
    lines = result["parts"]["draws"]["answer"]["lines"]
    kinds = list(dict.fromkeys(line["terms"] for line in lines))
    counts = list(dict.fromkeys(line["rows"] for line in lines))
    rows = []
    for kind in kinds:
        times = {line["rows"]: line["ms"] for line in lines if line["terms"] == kind}
        cut = [line for line in result["cut_us"] if line["terms"] == kind and line["rows"] == 1]
        now = f"{cut[0]['8/2048']:.0f} -> {cut[0]['32/4096']:.0f}" if cut else "-"
        rows.append([kind, *(f"{times[count]:.2f}" for count in counts), now])
    head = ["terms", *(f"{count} rows, ms" for count in counts), "cut of a row alone, us"]
    return table(head, rows)


def attention(result: Result) -> str:
    """Show times of our own attention kernel, parts in turn and side by side."""
    rows = [
        [
            *(str(line["sessions"]), str(line["rows"]), f"{line['context']:,}"),
            f"{line['max_keys']:,}",
            f"{line['floor_us']:.1f}",
            f"{line['us, parts in turn']:.1f}",
            f"{line['us, parts side by side']:.1f}",
            "yes" if line["same bits"] else "**no**",
        ]
        for line in result["attention"]["parts"]
    ]
    head = ["sessions", "rows of each", "keys of each", "most keys", "reading them, us"]
    head += ["parts in turn, us", "side by side, us", "same bits"]
    return table(head, rows)


def memory(result: Result) -> str:
    """Show graphs kept by their bound, and memory after loading, before and after the mends."""
    both = result["graphs_of_a_large_vocabulary"]
    rows = [
        [f"{after['mib']}", *(_kept(line) for line in (before, after))]
        for before, after in zip(both["before"], both["after"], strict=True)
    ]
    loaded = {line["way"]: line for line in result["memory_after_loading_8b"]}
    spare = {name: line["reserved"] - line["allocated"] for name, line in loaded.items()}
    return (
        f"{table(['bound, MiB', 'smallest first', 'largest first'], rows)}\n\n"
        f"After loading 8B torch held {spare['as before']:.2f} GiB that no tensor had; "
        f"weight by weight it is {spare['weight by weight']:.2f}."
    )


def _kept(line: dict[str, Any]) -> str:
    return f"{line['passes']} of {line['wanted']} wanted; with chains {line['all']}"


def tests(result: Result) -> str:
    """Show passed, failed and missing tests of each run."""
    rows = [
        [
            *(str(run["run"]), str(run["passed"])),
            "<br>".join(f"`{name}`" for name in run["failed"]) or "none",
            "<br>".join(f"`{name}`" for name in run["not_run"]) or "none",
        ]
        for run in result["tests"]
    ]
    return table(["run", "passed", "failed", "not reached in its time"], rows)
