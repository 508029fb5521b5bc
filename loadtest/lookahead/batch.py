"""Several look-ahead sessions at once, and ordinary streams beside them; by turns."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

from loadtest.frame.claims import Claim, at_least
from loadtest.lookahead.runs import Bench
from loadtest.lookahead.tasks import Prompts
from loadtest.lookahead.terms import CDSL, GREEDY, Terms
from loadtest.report.interleaved import interleave
from loadtest.report.ratios import Estimate, ratio_of

_GOAL_OF_BATCH = 2.5  # tokens/s of 8 at once over 1
_GOAL_OF_GAP = 2.0  # a stream's time per token beside others, over alone
_STREAM_PROMPT = "Write a short story about a dog."


def batch(
    bench: Bench,
    prompts: Prompts,
    terms: Terms,
    *,
    sizes: Sequence[int],
    stream_tokens: int,
    repeats: int,
) -> dict[str, Any]:
    """Tokens per second of look-ahead sessions by how many there are, and a stream's own pace."""
    largest = max(sizes)
    bench.answer(prompts.part(0, largest).several(largest), terms)  # the first answer takes longer
    runs = interleave(
        {str(size): partial(bench.answer, prompts.several(size), terms) for size in sizes}, repeats
    )
    beside = {"nobody": None, "as many ordinary ones": terms.ways()[GREEDY], CDSL: terms}
    paces = interleave(
        {
            name: partial(_pace, bench, prompts, way, largest, stream_tokens)
            for name, way in beside.items()
        },
        repeats,
    )
    rates = {name: [run.tokens_per_s for run in found] for name, found in runs.items()}
    first = rates[str(min(sizes))]
    claims = [
        at_least(
            f"tokens/s, {largest} sessions at once / {min(sizes)}",
            ratio_of(rates[str(largest)], first),
            _GOAL_OF_BATCH,
        ),
        _gap_claim(ratio_of(paces["nobody"], paces[CDSL]), largest),
    ]
    return {
        "lines": [
            {
                "sessions": size,
                "tokens_per_s": statistics.median(rates[str(size)]),
                "runs": rates[str(size)],
                "to_first": ratio_of(rates[str(size)], first).value,
            }
            for size in sizes
        ],
        "streams": [
            {"beside": name, "tokens_per_s": statistics.median(found), "runs": found}
            for name, found in paces.items()
        ],
        "claims": [claim.record() for claim in claims],
    }


def _pace(
    bench: Bench,
    prompts: Prompts,
    terms: Terms | None,
    num_others: int,
    num_tokens: int,
) -> float:
    """Tokens per second of one ordinary stream while others answer prompts over and over."""
    if terms is None:
        return num_tokens / bench.stream(_STREAM_PROMPT, num_tokens)
    is_over = threading.Event()

    def keep_asking(first: int) -> None:
        for place in count(first):
            if is_over.is_set():
                return
            start = place % len(prompts.asks)
            bench.answer(prompts.part(start, start + 1).several(1), terms)

    others = [threading.Thread(target=keep_asking, args=(place,)) for place in range(num_others)]
    for other in others:
        other.start()
    try:
        return num_tokens / bench.stream(_STREAM_PROMPT, num_tokens)
    finally:
        is_over.set()
        for other in others:
            other.join()


def _gap_claim(gap: Estimate, num_others: int) -> Claim:
    text = f"a stream's time a token beside {num_others} look-ahead sessions / alone"
    return Claim(text, gap.value, "at most", _GOAL_OF_GAP, interval=(gap.low, gap.high))
