"""Measures staged speculation: suffix decoding guesses for the draft model, off and on.

    python -m loadtest.staged --pair models/demo --output loadtest/results/staged-demo.json
    python -m loadtest.staged --pair PAIR --smaller PAIR/tiny

If a third model is named, this smaller draft model guesses too. Every prompt is answered greedily
with k fixed and with adaptive k, one at a time, in one process. The ways take turns: guesses off,
on, and of the smaller draft model. Suffix decoding is on in all of them. The run fails if a text
depends on the way. `passes` are the draft model's for each token of the text.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from deployments.local.inline import InlineDevice
from loadtest.bench.loop import LIMITS, Learnt, NoText, bench_runner, pair_runners
from loadtest.report.interleaved import interleave, median_ratio
from loadtest.report.pairs import PairPath
from loadtest.report.prompts import demo_prompts
from loadtest.report.record import head, write_json
from models.engine.draft import DraftEngine
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Sampling
from router.drafters.draft_model import DRAFT_MODEL, POOL
from router.drafters.repeats.text_memory import TextMemory
from router.generator import SpeculativeGenerator
from router.limits import SpeculationLimits
from router.services import Services
from router.types import Finished, GenerationRequest

_EPOCH = 1
_MAX_MODEL_LEN = 512
_SMALLER = "smaller"  # the pool of that model, and the way in which it guesses
KS: dict[str, int | None] = {"k=5": 5, "adaptive": None}


@dataclass(frozen=True)
class Run:
    """One run of all prompts."""

    tokens_per_s: float
    texts: tuple[tuple[int, ...], ...]
    num_passes: int  # passes of the draft model
    num_guessed: int
    num_right: int


class StagedBench:
    """A pair of engines and the router's loop over them.

    Args:
        pair: holds target/ and draft/ with the demo's vocabulary.
        kind: of prompts, a key of `models.demo.data.mixture.SHARES`.
        num_prompts: of each run.
        num_threads: of each engine.
        smaller: folder of a smaller draft model; None: there is none.

    Attributes:
        ways: who guesses for the draft model.
    """

    def __init__(
        self,
        pair: Path,
        kind: str,
        num_prompts: int,
        num_threads: int,
        smaller: Path | None = None,
    ) -> None:
        sizes = {"max_model_len": _MAX_MODEL_LEN, "num_threads": num_threads}
        self._target, self._draft = pair_runners(pair, **sizes)
        self._smaller = None if smaller is None else bench_runner(smaller, **sizes)
        self.ways = ("off", "on") if smaller is None else ("off", "on", _SMALLER)
        self._prompts = demo_prompts(num_prompts, kind=kind)
        runs = [(name, way) for name in KS for way in self.ways]
        self._learnt = {run: Learnt() for run in runs}
        self._memories = {run: TextMemory() for run in runs}

    def run(self, name: str, num_tokens: int, way: str) -> Run:
        """Answer all prompts one after another, with at most `num_tokens` tokens each."""
        with self._learnt[name, way].clock:
            return asyncio.run(self._run(name, num_tokens, way))

    async def _run(self, name: str, num_tokens: int, way: str) -> Run:
        device = InlineDevice()
        draft = DraftEngine(self._draft, NoMaskSource(), _EPOCH)
        target = TargetEngine(self._target, NoMaskSource(), _EPOCH)
        engines: dict[str, DraftEngine] = {}  # the first goes first
        if way == _SMALLER and self._smaller is not None:
            engines[_SMALLER] = DraftEngine(self._smaller, NoMaskSource(), _EPOCH)
        engines[POOL] = draft
        pool = partial(device.pool, epoch=_EPOCH, max_model_len=_MAX_MODEL_LEN)
        draft_pools = {pool_name: pool(engine) for pool_name, engine in engines.items()}
        services = Services(
            target_pool=pool(target),
            draft_pools=draft_pools,
            constraint_pool=None,
            speculation=_limits(KS[name], way),
            limits=LIMITS,
            planner=self._learnt[name, way].planner,
            memory=self._memories[name, way],
        )
        generator = SpeculativeGenerator(services, max_model_len=_MAX_MODEL_LEN)
        began_s = time.perf_counter()
        try:
            answers = [
                await self._answer(generator, f"run-{index}", prompt, num_tokens)
                for index, prompt in enumerate(self._prompts)
            ]
        finally:
            await device.close()
        texts = tuple(tuple(ids) for ids, _ in answers)
        stats = [finished.speculation for _, finished in answers]
        return Run(
            tokens_per_s=sum(map(len, texts)) / (time.perf_counter() - began_s),
            texts=texts,
            num_passes=draft.load().num_passes,
            num_guessed=sum(one.num_guess_tokens for one in stats),
            num_right=sum(one.num_right_guess_tokens for one in stats),
        )

    async def _answer(
        self, generator: SpeculativeGenerator, name: str, prompt: list[int], max_tokens: int
    ) -> tuple[list[int], Finished]:
        request = GenerationRequest(
            request_id=name,
            prompt_ids=tuple(prompt),
            sampling=Sampling(temperature=0.0),
            eos_ids=self._target.eos_ids,
            max_tokens=max_tokens,
        )
        ids: list[int] = []
        # Closed here, so that the blocks of its last session come back to the runner's pool.
        async with contextlib.aclosing(generator.generate(request, NoText())) as events:
            async for event in events:
                if isinstance(event, Finished):
                    return ids, event
                ids.extend(event.token_ids)
        raise RuntimeError("the stream ended without a finish")


def _limits(k: int | None, way: str) -> SpeculationLimits:
    is_chain = way == _SMALLER
    return SpeculationLimits(
        num_speculative_tokens="adaptive" if k is None else k,
        suffix_decoding_for_draft=way == "on",
        suffix_decoding_max_cached_requests=0,  # which would know the repeated answers
        drafted_by={DRAFT_MODEL.name: _SMALLER} if is_chain else {},
        draft_shares={DRAFT_MODEL.name: 1.0} if is_chain else {},
    )


def measure(bench: StagedBench, num_tokens: int, repeats: int) -> list[dict[str, Any]]:
    """Measure fixed and adaptive k, with guesses off, on, and of a smaller draft model if given.

    Raises:
        ValueError: a text depends on it.
    """
    lines = {
        f"{name}, {way}": partial(bench.run, name, num_tokens, way)
        for name in KS
        for way in bench.ways
    }
    runs = interleave(lines, 1 + repeats)
    if len({run.texts for given in runs.values() for run in given}) > 1:
        raise ValueError("a text depends on guesses")
    num_all = sum(map(len, runs["k=5, off"][0].texts))
    warm = {line: given[1:] for line, given in runs.items()}
    rates = {line: [run.tokens_per_s for run in given] for line, given in warm.items()}
    return [
        {
            "k": name,
            "num_tokens": num_all,
            "tokens_per_s": {way: statistics.median(rates[f"{name}, {way}"]) for way in bench.ways},
            "gain": median_ratio(rates[f"{name}, on"], rates[f"{name}, off"]),
            "passes": {
                way: statistics.mean(run.num_passes for run in warm[f"{name}, {way}"]) / num_all
                for way in bench.ways
            },
            "guessed": statistics.mean(run.num_guessed for run in warm[f"{name}, on"]),
            "right": statistics.mean(run.num_right for run in warm[f"{name}, on"]),
        }
        | ({} if _SMALLER not in bench.ways else {_SMALLER: _of_smaller(name, warm, rates)})
        for name in KS
    ]


def _of_smaller(
    name: str, warm: Mapping[str, Sequence[Run]], rates: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Return the figures of the smaller draft model, for one way of choosing k."""
    runs = warm[f"{name}, {_SMALLER}"]
    return {
        "gain": median_ratio(rates[f"{name}, {_SMALLER}"], rates[f"{name}, off"]),
        "guessed": statistics.mean(run.num_guessed for run in runs),
        "right": statistics.mean(run.num_right for run in runs),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench from the command line; exit status 1: a text was not the same."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="loadtest.staged", description=__doc__)
    parser.add_argument("--pair", default="models/demo", help="[LABEL=]DIR")
    parser.add_argument(
        "--smaller", type=Path, help="folder of a draft model that drafts for the pair's"
    )
    parser.add_argument("--kind", default="extraction", help="of the demo's prompts")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer, at most")
    parser.add_argument("--repeats", type=int, default=3, help="of each way, after a warm-up")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="JSON")
    arguments = parser.parse_args(words)
    bench = StagedBench(
        PairPath.parse(arguments.pair).path,
        arguments.kind,
        arguments.prompts,
        arguments.threads,
        arguments.smaller,
    )
    try:
        found = measure(bench, arguments.tokens, arguments.repeats)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    for line in found:
        print(json.dumps(line))
    write_json(
        arguments.output,
        head("python -m loadtest.staged", words, vars(arguments)) | {"lines": found},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
