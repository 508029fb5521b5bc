"""Compares trees of drafts with chains of as many rows, per round: counts, no times, no server.

    python -m loadtest.trees --output loadtest/results/trees.json

The demo's target answers prompts of all kinds in this process, by messages to its engine. It does
so with each folder of heads, each temperature and each number of draft rows. Drafts are chains, as
long as the heads go, and trees. Other prompts show beforehand how often each rank is right. The run
fails if a text depends on the way. Every number is a function of the weights, so it is the same on
any machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from loadtest.bench.claims import Claim
from loadtest.report.machine import ROOT
from loadtest.report.prompts import demo_prompts
from loadtest.report.record import head, write_json
from models.config import EngineConfig
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Close, Open, Sampling, Verdict, Verify
from models.protocol.token_sequence import EMPTY_HASH

FOLDERS = ("models/demo/mtp", "models/demo/heads")
TEMPERATURES = (0.0, 1.0)
NUM_ROWS = (2, 3, 4, 6, 8, 12)
CHAIN, TREE = "chain", "tree"
_TARGET = "models/demo/target"
_EPOCH = 1
_BATCH = 16  # sessions at a time
_MAX_MODEL_LEN = 1024


class TextDiffers(Exception):
    """A text depends on how it was drafted."""


@dataclass
class Counts:
    """The tokens of rounds with a draft, and the texts."""

    num_rounds: int = 0
    num_tokens: int = 0
    num_drafted: int = 0
    texts: list[list[int]] = field(default_factory=list)

    @property
    def tokens_per_round(self) -> float:
        """Accepted tokens and the one after them."""
        return self.num_tokens / max(1, self.num_rounds)

    def note(self, verdict: Verdict) -> None:
        """Count a verdict that a draft of the engine's own went before."""
        if verdict.num_own_drafted:
            self.num_rounds += 1
            self.num_tokens += len(verdict.own) + 1
            self.num_drafted += verdict.num_own_drafted


def run_prompts(
    engine: TargetEngine, prompts: Sequence[Sequence[int]], temperature: float, num_tokens: int
) -> Counts:
    """Answer the prompts, some at a time, each with a seed of its own."""
    counts = Counts()
    eos_ids = sorted(engine.runner.eos_ids)
    for first in range(0, len(prompts), _BATCH):
        some = {f"s{first + i}": ids for i, ids in enumerate(prompts[first : first + _BATCH])}
        texts: dict[str, list[int]] = {name: [] for name in some}
        for number, (name, ids) in enumerate(some.items(), start=first):
            sampling = Sampling(temperature=temperature, seed=number)
            engine.submit(_opening(name, sampling, len(ids), eos_ids), None)
            engine.submit(_question(name, ids, num_tokens), None)
        while engine.has_work:
            for _, reply in engine.step():
                if isinstance(reply, Verdict):
                    counts.note(reply)
                    texts[reply.session_id] += [*reply.own, reply.token]
        for name in some:
            engine.submit(Close(session_id=name, epoch=_EPOCH), None)
        counts.texts += [text[:num_tokens] for text in texts.values()]
    return counts


def _opening(name: str, sampling: Sampling, prompt_len: int, eos_ids: list[int]) -> Open:
    return Open(
        session_id=name, epoch=_EPOCH, sampling=sampling, prompt_len=prompt_len, eos_ids=eos_ids
    )


def _question(name: str, prompt: Sequence[int], num_tokens: int) -> Verify:
    return Verify(
        session_id=name,
        epoch=_EPOCH,
        seq=1,
        base_len=0,
        prefix_hash=EMPTY_HASH,
        tokens=list(prompt),
        draft=[],
        run_on=num_tokens - 1,
        own_drafts=True,
    )


def load(folder: str | None, dtype: str, num_threads: int) -> ModelRunner:
    """Load the demo's target, with heads if a folder is named."""
    config = EngineConfig.model_validate(
        {
            "model_path": str(ROOT / _TARGET),
            "heads": None if folder is None else str(ROOT / folder),
            "dtype": dtype,
            "num_threads": num_threads,
            "max_model_len": _MAX_MODEL_LEN,
            "kv_cache_tokens": _BATCH * _MAX_MODEL_LEN,
            "enable_prefix_caching": False,
        }
    )
    return ModelRunner(config)


def measure(
    runner: ModelRunner,
    temperature: float,
    num_rows: Sequence[int],
    prompts: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]],
    num_tokens: int,
) -> list[dict[str, Any]]:
    """Measure one line for each number of rows.

    Args:
        runner: with heads.
        temperature: of all answers.
        num_rows: of drafts.
        prompts: to learn from, and to count.
        num_tokens: of an answer at most.

    Raises:
        TextDiffers: a text depends on the number of rows or the way.
    """
    lines: list[dict[str, Any]] = []
    texts: list[list[int]] | None = None
    for rows in num_rows:
        found: dict[str, float] = {}
        for way in (CHAIN, TREE):
            engine = TargetEngine(runner, NoMaskSource(), _EPOCH, queued_interval_s=1e6)
            assert engine.own_drafts is not None, "no heads were loaded"
            engine.own_drafts.fix(rows, rows if way == TREE else 0)
            run_prompts(engine, prompts[0], temperature, num_tokens)
            counts = run_prompts(engine, prompts[1], temperature, num_tokens)
            texts = texts or counts.texts
            if counts.texts != texts:
                raise TextDiffers(f"{way} of {rows} rows at temperature {temperature:g}")
            found[way] = counts.tokens_per_round
        lines.append({"temperature": temperature, "rows": rows} | found)
    return lines


def claims_of(lines: Sequence[dict[str, Any]]) -> list[Claim]:
    """Trees bring more than chains of as many rows."""
    return [
        Claim(
            f"{Path(one['folder']).name}, T = {one['temperature']:g}, {one['rows']} rows: "
            "tree / chain",
            one[TREE] / one[CHAIN],
            "at least",
            1.0,
        )
        for one in lines
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Count from the command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="loadtest.trees", description=__doc__)
    parser.add_argument("--folders", nargs="+", default=list(FOLDERS), help="of heads")
    parser.add_argument("--temperatures", nargs="+", type=float, default=list(TEMPERATURES))
    parser.add_argument("--rows", nargs="+", type=int, default=list(NUM_ROWS), help="of a draft")
    parser.add_argument("--prompts", type=int, default=64, help="counted; as many are learnt from")
    parser.add_argument("--tokens", type=int, default=100, help="of each answer at most")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="JSON")
    arguments = parser.parse_args(words)
    prompts = demo_prompts(2 * arguments.prompts)
    halves = prompts[: arguments.prompts], prompts[arguments.prompts :]
    lines: list[dict[str, Any]] = []
    runners = {
        folder: load(folder, arguments.dtype, arguments.threads) for folder in arguments.folders
    }
    for folder, temperature in product(arguments.folders, arguments.temperatures):
        found = measure(runners[folder], temperature, arguments.rows, halves, arguments.tokens)
        lines += [{"folder": folder} | line for line in found]
        for line in lines[-len(found) :]:
            print(json.dumps(line), flush=True)
    claims = claims_of(lines)
    for claim in claims:
        print(claim)
    result = head("python -m loadtest.trees", words, vars(arguments))
    records = [claim.record() for claim in claims]
    write_json(arguments.output, result | {"lines": lines, "claims": records})


if __name__ == "__main__":
    main()
