"""Measures the gain of drafting forced text for answers under JSON schemas, in one process.

    python -m loadtest.forced --output loadtest/results/forced.json

It answers every prompt greedily under every schema in each way, one at a time, by turns. The ways
are no draft model, k = 3 and adaptive k, each with forced text off and on. As many tokens are
decoded plainly without any grammar. It fails if a text depends on the way. `forced share` is the
share of an answer's tokens that were drafted as forced text and accepted. `settled share` is the
share of the same text that a grammar fixes before it comes. It is given with the whitespace of this
service, and with any.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llguidance

from deployments.local.inline import InlineDevice
from deployments.local.pool import LocalConstraintPool
from loadtest.bench.claims import Claim
from loadtest.bench.loop import NoText, pair_runners
from loadtest.report.interleaved import interleave, median_ratio
from loadtest.report.pairs import PairPath
from loadtest.report.record import head, write_json
from models.engine.draft import DraftEngine
from models.engine.target import TargetEngine
from models.grammar.compiler import GrammarCompiler, VocabularyInfo
from models.grammar.host import GrammarHost
from models.grammar.masks import LocalMaskSource
from models.protocol.messages import Grammar, Sampling
from models.text.tokenizer import Tokenizer
from router.drafters.draft_model import POOL
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits, SpeculationLimits
from router.services import Services
from router.types import Finished, GenerationRequest

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_EPOCH = 1
_MAX_MODEL_LEN = 512
_ORDERS = (
    "Imogen from Delhi wants 6 blue lamps at $62.29 each.",
    "Noah from Lima wants 2 red chairs at $15.50 each.",
    "Sara from Oslo wants 14 small cups at $3.75 each.",
    "Hugo from Porto wants 3 green boxes at $20.00 each.",
)


def _object(**properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_WHITESPACE: Mapping[str, JsonCompileOptions] = {
    "fixed": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    "any": {"whitespace_flexible": True},
}
_SHORT_TEXT = {"type": "string", "maxLength": 40}
_WHOLE = {"type": "integer", "minimum": 0, "maximum": 999}
SCHEMAS: dict[str, dict[str, object]] = {
    "order": _object(customer=_SHORT_TEXT, item=_SHORT_TEXT, quantity=_WHOLE, city=_SHORT_TEXT),
    "long keys": _object(
        full_name_of_the_customer=_SHORT_TEXT,
        description_of_the_ordered_item=_SHORT_TEXT,
        quantity_that_was_ordered=_WHOLE,
        city_that_the_order_is_shipped_to=_SHORT_TEXT,
    ),
    "enums": _object(
        customer=_SHORT_TEXT,
        shipping_method={"enum": ["standard delivery", "express delivery", "collection in shop"]},
        status={"enum": ["received", "processing", "completed"]},
        currency={"const": "US dollars"},
    ),
    "nested": _object(
        order=_object(
            customer=_object(name=_SHORT_TEXT, address=_object(city=_SHORT_TEXT)),
            line=_object(item=_SHORT_TEXT, quantity=_WHOLE),
        )
    ),
}


@dataclass(frozen=True)
class Way:
    """A way to generate answers; `k` None is adaptive."""

    has_draft: bool = False
    k: int | None = None
    forced: bool = False
    constrained: bool = True


FREE = "no grammar, plain"
WAYS = {
    FREE: Way(k=0, constrained=False),
    "plain": Way(k=0),
    "plain, forced": Way(forced=True),
    "k=3": Way(has_draft=True, k=3),
    "k=3, forced": Way(has_draft=True, k=3, forced=True),
    "adaptive": Way(has_draft=True),
    "adaptive, forced": Way(has_draft=True, forced=True),
}


@dataclass(frozen=True)
class Run:
    """One run of all prompts in one way."""

    tokens_per_s: float
    texts: tuple[tuple[int, ...], ...]
    num_drafted: int  # as forced text
    num_accepted: int  # accepted ones among these


class ForcedBench:
    """A pair of engines, its grammars, and the router's loop over them."""

    def __init__(self, pair: Path, num_threads: int) -> None:
        folder = pair / "target"
        self.tokenizer = Tokenizer.load(folder)
        self.target, self._draft = pair_runners(
            pair, max_model_len=_MAX_MODEL_LEN, num_threads=num_threads
        )
        self.vocabulary = VocabularyInfo(
            tokenizer_json=(folder / "tokenizer.json").read_text(encoding="utf-8"),
            vocab_size=int(json.loads((folder / "config.json").read_text())["vocab_size"]),
            eos_ids=self.tokenizer.eos_ids,
        )
        self._host = GrammarHost(GrammarCompiler(self.vocabulary))
        self._prompts = [
            self.tokenizer.encode_chat(
                [{"role": "user", "content": f"Turn this order into JSON.\n{order}"}]
            )
            for order in _ORDERS
        ]

    def run(self, way: Way, schema: dict[str, object], num_tokens: Sequence[int]) -> Run:
        """Answer all prompts one after another, with at most `num_tokens[i]` tokens each."""
        return asyncio.run(self._run(way, schema, num_tokens))

    async def _run(self, way: Way, schema: dict[str, object], num_tokens: Sequence[int]) -> Run:
        device, constraint = InlineDevice(), LocalConstraintPool(self._host)
        masks = LocalMaskSource(constraint.host), LocalMaskSource(constraint.host)
        draft = DraftEngine(self._draft, masks[0], _EPOCH)
        target = TargetEngine(self.target, masks[1], _EPOCH)
        pools = [
            device.pool(engine, epoch=_EPOCH, max_model_len=_MAX_MODEL_LEN)
            for engine in (draft, target)
        ]
        services = Services(
            target_pool=pools[1],
            draft_pools={POOL: pools[0]} if way.has_draft else {},
            constraint_pool=constraint,
            speculation=SpeculationLimits(
                num_speculative_tokens="adaptive" if way.k is None else way.k,
                prompt_lookup_max=0,
                suffix_decoding_max_tree_depth=0,
                forced_text=way.forced,
            ),
            limits=SessionLimits(draft_ms=10_000),
        )
        generator = SpeculativeGenerator(services, max_model_len=_MAX_MODEL_LEN)
        grammar = Grammar(kind="json_schema", text=json.dumps(schema)) if way.constrained else None
        try:
            await self._answer(generator, 0, "warm-up", grammar, num_tokens[0])
            began_s = time.perf_counter()
            answers = [
                await self._answer(generator, index, "run", grammar, most)
                for index, most in enumerate(num_tokens)
            ]
            elapsed_s = time.perf_counter() - began_s
        finally:
            await device.close()
            await constraint.close()
        stats = [finished.speculation for _, finished in answers]
        return Run(
            tokens_per_s=sum(len(ids) for ids, _ in answers) / elapsed_s,
            texts=tuple(tuple(ids) for ids, _ in answers),
            num_drafted=sum(one.num_drafted_by.get("forced", 0) for one in stats),
            num_accepted=sum(one.num_accepted_by.get("forced", 0) for one in stats),
        )

    async def _answer(
        self,
        generator: SpeculativeGenerator,
        index: int,
        name: str,
        grammar: Grammar | None,
        max_tokens: int,
    ) -> tuple[list[int], Finished]:
        request = GenerationRequest(
            request_id=f"{name}-{index}",
            prompt_ids=tuple(self._prompts[index]),
            sampling=Sampling(temperature=0.0),
            eos_ids=self.tokenizer.eos_ids,
            max_tokens=max_tokens,
            grammar=grammar,
            ignore_eos=grammar is None,  # exactly as many tokens
        )
        ids: list[int] = []
        finished: Finished | None = None
        async for event in generator.generate(request, NoText()):
            if isinstance(event, Finished):
                finished = event
            else:
                ids.extend(event.token_ids)
        if finished is None:
            raise RuntimeError("the stream ended without a finish")
        return ids, finished


def settled_share(
    vocabulary: VocabularyInfo,
    schema: dict[str, object],
    texts: Sequence[Sequence[int]],
    whitespace: JsonCompileOptions,
) -> float:
    """Share of tokens that a grammar with such whitespace settles before they come."""
    tokenizer = llguidance.LLTokenizer(
        vocabulary.tokenizer_json, n_vocab=vocabulary.vocab_size, eos_token=list(vocabulary.eos_ids)
    )
    source = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=whitespace)
    num_forced = num_tokens = 0
    for text in texts:
        matcher = llguidance.LLMatcher(tokenizer, source, log_level=0)
        ids = [token for token in text if token not in vocabulary.eos_ids]
        at, num_tokens = 0, num_tokens + len(text)
        while at < len(ids):
            forced = matcher.deep_copy().compute_ff_tokens()
            pairs = zip(forced, ids[at:], strict=False)
            num_right = next((i for i, (x, y) in enumerate(pairs) if x != y), len(forced))
            num_forced += num_right
            matcher.consume_tokens(ids[at : at + num_right + 1])
            at += num_right + 1
    return num_forced / num_tokens


def claims_of(found: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Forced text makes answers with long keys faster than as many tokens without a grammar."""
    text = "long keys: forced text, no draft model / as many tokens without a grammar, plain"
    return [
        Claim(text, one["to_no_grammar"]["plain, forced"], "at least", 1.0)
        for one in found
        if one["schema"] == "long keys"
    ]


def measure(bench: ForcedBench, name: str, max_tokens: int, repeats: int) -> dict[str, Any]:
    """Measure one schema in every way.

    Raises:
        ValueError: a text depends on the way.
    """
    schema = SCHEMAS[name]
    first = bench.run(WAYS["plain"], schema, [max_tokens] * len(_ORDERS))
    lengths = [len(text) for text in first.texts]
    runs = interleave(
        {way: partial(bench.run, WAYS[way], schema, lengths) for way in WAYS}, repeats
    )
    if any(run.texts != first.texts for way in WAYS if way != FREE for run in runs[way]):
        raise ValueError(f"{name}: a text depends on the way")
    rates = {way: [run.tokens_per_s for run in given] for way, given in runs.items()}
    forced = runs["plain, forced"][0]
    gains = {
        way: median_ratio(rates[f"{way}, forced"], rates[way])
        for way in ("plain", "k=3", "adaptive")
    }
    against_free = {
        way: median_ratio(rates[way], rates[FREE]) for way in ("plain", "plain, forced")
    }
    content = {
        "schema": name,
        "num_tokens": sum(lengths),
        "forced_share": forced.num_accepted / sum(lengths),
        "forced_acceptance": forced.num_accepted / max(1, forced.num_drafted),
        "settled_share": {
            name: settled_share(bench.vocabulary, schema, first.texts, whitespace)
            for name, whitespace in _WHITESPACE.items()
        },
        "tokens_per_s": {way: statistics.median(values) for way, values in rates.items()},
        "gain": gains,
        "to_no_grammar": against_free,
    }
    return content


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench from the command line; exit status 1: a text was not the same."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="loadtest.forced", description=__doc__)
    parser.add_argument("--pair", default="models/demo", help="[LABEL=]DIR")
    parser.add_argument("--schemas", nargs="+", choices=sorted(SCHEMAS), default=list(SCHEMAS))
    parser.add_argument("--tokens", type=int, default=96, help="of each answer, at most")
    parser.add_argument("--repeats", type=int, default=3, help="of each way, by turns")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="JSON")
    arguments = parser.parse_args(words)
    bench = ForcedBench(PairPath.parse(arguments.pair).path, arguments.threads)
    found = []
    for name in arguments.schemas:
        try:
            found.append(measure(bench, name, arguments.tokens, arguments.repeats))
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
        print(json.dumps(found[-1]))
    claims = claims_of(found)
    for claim in claims:
        print(claim)
    result = head("python -m loadtest.forced", words, vars(arguments))
    records = [claim.record() for claim in claims]
    write_json(arguments.output, result | {"schemas": found, "claims": records})
    return 0


if __name__ == "__main__":
    sys.exit(main())
