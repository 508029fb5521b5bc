"""Figures of what has a command of its own: clients, locust."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.report.readme.result import Result, table

_UNKNOWN = "-"


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
