"""Measures the cost of a JSON schema, in one process: the first token and every token after it.

    python -m loadtest.constrained --output loadtest/results/constrained.json

The ways run by turns and greedily, without a draft model. The first token is measured without a
schema, with a new schema of 5 KB, and with the same again. Decoding is measured with and without a
schema, for the same number of tokens. Forced text is off and on, at every batch size. Texts here
end at the limit of tokens only. These figures do not include HTTP and the constraint service's own
process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from deployments.local.inline import InlineDevice
from deployments.local.pool import LocalConstraintPool
from loadtest.bench.claims import Claim
from loadtest.bench.loop import NoText, pair_runners
from loadtest.fuzz.engines.grammars import random_schema
from loadtest.matrix.schemas import bounded
from loadtest.report.interleaved import interleave
from loadtest.report.pairs import PairPath
from loadtest.report.ratios import ratio_of
from loadtest.report.record import head, write_json
from models.engine.target import TargetEngine
from models.grammar.compiler import GrammarCompiler, VocabularyInfo
from models.grammar.host import GrammarHost
from models.grammar.masks import LocalMaskSource
from models.protocol.messages import Grammar, Sampling
from models.text.tokenizer import Tokenizer
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits, SpeculationLimits
from router.services import Services
from router.types import Finished, GenerationRequest

_EPOCH = 1
_MAX_MODEL_LEN = 512
_SCHEMA_BYTES = 5_000
_PROMPT = "Turn this order into JSON.\nImogen from Delhi wants 6 blue lamps at $62.29 each."
_MOST_MORE_MS = {"new": 20.0, "cached": 2.0}
_MOST_TIMES_FREE = 1.05
# Longer than any run: an answer under it ends at the limit of tokens, as one without a schema.
_LONG = {
    "type": "array",
    "minItems": 200,
    "maxItems": 200,
    "items": {
        "type": "object",
        "properties": {
            "customer": {"type": "string", "maxLength": 40},
            "quantity": {"type": "integer", "minimum": 0, "maximum": 999},
        },
        "required": ["customer", "quantity"],
        "additionalProperties": False,
    },
}


def large_schema(rng: random.Random, num_bytes: int = _SCHEMA_BYTES) -> str:
    """Return a schema of bounded random fields, of at least `num_bytes` as JSON."""
    fields: dict[str, Any] = {}
    while True:
        fields[f"field_{len(fields)}"] = bounded(random_schema(rng))
        text = json.dumps(
            {
                "type": "object",
                "properties": fields,
                "required": list(fields),
                "additionalProperties": False,
            }
        )
        if len(text) >= num_bytes:
            return text


class ConstrainedBench:
    """The target of a pair, its grammars, and the router's loop over them."""

    def __init__(self, pair: Path, num_threads: int) -> None:
        folder = pair / "target"
        tokenizer = Tokenizer.load(folder)
        self._target, _ = pair_runners(pair, max_model_len=_MAX_MODEL_LEN, num_threads=num_threads)
        vocabulary = VocabularyInfo(
            tokenizer_json=(folder / "tokenizer.json").read_text(encoding="utf-8"),
            vocab_size=int(json.loads((folder / "config.json").read_text())["vocab_size"]),
            eos_ids=tokenizer.eos_ids,
        )
        self._host = GrammarHost(GrammarCompiler(vocabulary))
        self._eos_ids = tokenizer.eos_ids
        self._prompt = tuple(tokenizer.encode_chat([{"role": "user", "content": _PROMPT}]))

    def run(
        self, schema: str | None, num_tokens: int, *, batch: int = 1, forced: bool = False
    ) -> float:
        """Seconds until `batch` answers at once have `num_tokens` tokens each."""
        return asyncio.run(self._run(schema, num_tokens, batch, forced))

    async def _run(self, schema: str | None, num_tokens: int, batch: int, forced: bool) -> float:
        device, constraint = InlineDevice(), LocalConstraintPool(self._host)
        target = TargetEngine(self._target, LocalMaskSource(constraint.host), _EPOCH)
        services = Services(
            target_pool=device.pool(target, epoch=_EPOCH, max_model_len=_MAX_MODEL_LEN),
            draft_pools={},
            constraint_pool=constraint,
            speculation=SpeculationLimits(
                num_speculative_tokens="adaptive" if forced else 0,
                prompt_lookup_max=0,
                suffix_decoding_max_tree_depth=0,
                forced_text=forced,
            ),
            limits=SessionLimits(),
        )
        generator = SpeculativeGenerator(services, max_model_len=_MAX_MODEL_LEN)
        grammar = None if schema is None else Grammar(kind="json_schema", text=schema)
        try:
            await self._answer(generator, "warm-up", None, 1)
            began_s = time.perf_counter()
            await asyncio.gather(
                *(self._answer(generator, f"{i}", grammar, num_tokens) for i in range(batch))
            )
            return time.perf_counter() - began_s
        finally:
            await device.close()
            await constraint.close()

    async def _answer(
        self, generator: SpeculativeGenerator, name: str, grammar: Grammar | None, num_tokens: int
    ) -> None:
        request = GenerationRequest(
            request_id=name,
            prompt_ids=self._prompt,
            sampling=Sampling(temperature=0.0),
            eos_ids=self._eos_ids,
            max_tokens=num_tokens,
            grammar=grammar,
            ignore_eos=grammar is None,
        )
        num_written = 0
        async for event in generator.generate(request, NoText()):
            if not isinstance(event, Finished):
                num_written += len(event.token_ids)
        if num_written != num_tokens:
            raise RuntimeError(f"an answer has {num_written} tokens instead of {num_tokens}")


def first_token(bench: ConstrainedBench, repeats: int, seed: int) -> dict[str, list[float]]:
    """Milliseconds to the first token, by turns; a cached schema is the one just asked for."""
    rng = random.Random(seed)
    found: dict[str, list[float]] = {"free": [], "new": [], "cached": []}
    bench.run(large_schema(rng), 1)  # warm
    for _ in range(repeats):
        schema = large_schema(rng)
        for way, text in (("free", None), ("new", schema), ("cached", schema)):
            found[way].append(1000 * bench.run(text, 1))
    return found


def decoding(
    bench: ConstrainedBench, batch: int, num_tokens: int, repeats: int
) -> dict[str, list[float]]:
    """Seconds for as many tokens, without a schema and with one, by turns."""
    run, schema = partial(bench.run, batch=batch), json.dumps(_LONG)
    lines = {
        "free": partial(run, None, num_tokens),
        "constrained": partial(run, schema, num_tokens),
        "constrained, forced": partial(run, schema, num_tokens, forced=True),
    }
    for line in lines.values():  # warm
        line()
    return interleave(lines, repeats)


def claims_of(first_ms: dict[str, list[float]], decoded: dict[int, Any]) -> list[Claim]:
    """Return the limits of a schema's cost: ms of the first token, times of free decoding."""
    claims = []
    for way, most in _MOST_MORE_MS.items():
        more = [a - b for a, b in zip(first_ms[way], first_ms["free"], strict=True)]
        text = f"first token, {way} schema of 5 KB: ms more than without one"
        claims.append(Claim(text, statistics.median(more), "at most", most))
    for batch, seconds in decoded.items():
        for way in ("constrained", "constrained, forced"):
            ratio = ratio_of(seconds[way], seconds["free"])
            text = f"batch {batch}: time of a token, {way} / free"
            interval = (ratio.low, ratio.high)
            claims.append(Claim(text, ratio.value, "at most", _MOST_TIMES_FREE, interval=interval))
    return claims


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench from the command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="loadtest.constrained", description=__doc__)
    parser.add_argument("--pair", default="models/demo", help="[LABEL=]DIR")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--repeats", type=int, default=9, help="of each line, by turns")
    parser.add_argument("--seed", type=int, default=0, help="of the schemas")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="JSON")
    arguments = parser.parse_args(words)
    bench = ConstrainedBench(PairPath.parse(arguments.pair).path, arguments.threads)
    first_ms = first_token(bench, arguments.repeats, arguments.seed)
    decoded = {
        batch: decoding(bench, batch, arguments.tokens, arguments.repeats)
        for batch in arguments.batch
    }
    claims = claims_of(first_ms, decoded)
    for claim in claims:
        print(claim)
    result = head("python -m loadtest.constrained", words, vars(arguments))
    records = [claim.record() for claim in claims]
    measured = {"first_token_ms": first_ms, "decoding_s": decoded, "claims": records}
    write_json(arguments.output, result | measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
