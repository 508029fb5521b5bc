"""Speed against k, batch, length of answer, structure, and what each part of the engine is worth.

Every function measures one part of a study. Ways are run by turns; figures are ratios to plain
decoding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from loadtest.study.engines import Ask, DraftModel, Engines, Served, Way
from loadtest.study.sections import costs
from loadtest.study.ways import PLAIN, Line, lines_by_turns, measure_ways, ways_of
from loadtest.study.world import SHARED_TOKENS, World

_ABLATION_BATCH = 4
_ALL_ON = "all on"
_LENGTH_TOKENS = 400  # tokens of all answers of one length, about
_PROBES = 2  # prompts of each task that say how long its answers are


def by_k(world: World, draft: str, task: str) -> dict[str, Any]:
    """Decoding speed at every k, one request after another, from its first token on."""
    settings = world.settings
    ways = ways_of(draft, settings.k)
    lines = measure_ways(world.engines, world.asks(task), ways, 1, settings.repeats, "decode")
    return {"lines": records(lines)}


def by_batch(world: World, draft: str, batch: int) -> dict[str, Any]:
    """Measure all tasks together, so many requests at a time, and the times of passes."""
    settings = world.settings
    asks = repeated(world.asks(), max(2 * batch, len(world.tasks)))
    ways = ways_of(draft, settings.few_k)
    lines = measure_ways(world.engines, asks, ways, batch, settings.repeats, "all")
    return {"lines": records(lines), "costs": costs.measure(world, draft, batch)}


def by_length(world: World, draft: str, length: int) -> dict[str, Any]:
    """Answers of exactly `length` tokens on the task that writes most, prompts included.

    Fewer prompts where answers are long, at least two.
    """
    settings = world.settings
    task = world.longest_task = world.longest_task or _longest_task(world, draft)
    num_asks = max(_PROBES, _LENGTH_TOKENS // length)
    asks = [replace(ask, max_tokens=length) for ask in world.asks(task, is_exact=True)[:num_asks]]
    ways = ways_of(draft, settings.few_k)
    lines = measure_ways(world.engines, asks, ways, 1, settings.repeats, "all")
    return {"task": task, "lines": records(lines)}


def structure(world: World, draft: str) -> dict[str, Any]:
    """Measure the prompts that have a schema, held to it and free; `lines` may be empty."""
    settings = world.settings
    held = world.under_schemas()
    if not held:
        return {"lines": []}
    free = [replace(ask, schema=None) for ask in held]
    runs: dict[str, Callable[[], Served]] = {}
    for way in ways_of(draft, settings.few_k):
        runs[f"free, {way.name}"] = partial(world.engines.run, free, way)
        runs[f"schema, {way.name}"] = partial(world.engines.run, held, way)
    for run in runs.values():  # compiles the grammars as well
        run()
    served: dict[str, Served] = {}

    def kept(name: str) -> Served:
        served[name] = runs[name]()
        return served[name]

    lines = lines_by_turns(
        {name: partial(kept, name) for name in runs},
        settings.repeats,
        "decode",
        f"free, {PLAIN}",
        lambda name: f"{name.split(',')[0]}, {PLAIN}",
    )
    return {
        "num_prompts": len(held),
        "lines": [
            {**record, **_answers_of(world, served[record["way"]])} for record in records(lines)
        ],
    }


def ablation(world: World, draft: str) -> dict[str, Any]:
    """Measure requests that begin alike: with all features, and without each.

    The features off in turn are compiled kernels (torch's own operations) and batching (one request
    at a time). Then comes the prefix cache (no two requests share). Then 8-bit weights of the
    draft, drafts, and all of them are off.
    """
    settings = world.settings
    batch = min(_ABLATION_BATCH, max(settings.batch))
    asks = _with_shared_head(world, repeated(world.asks(), 2 * batch))
    apart = [replace(ask, group=f"alone-{index}") for index, ask in enumerate(asks)]
    models = world.models
    path = world.drafts[draft]
    can_round = path is not None and settings.device == "cpu"
    drafts: dict[str, DraftModel | None] = {
        "plain": None if path is None else DraftModel(path=path)
    }
    if path is not None and can_round:
        drafts["int8"] = DraftModel(path=path, quantization="int8")
    best = Way("int8" if can_round else "plain", None)
    models = replace(models, drafts=drafts, caches_prefixes=True)
    with Engines(models) as full, Engines(replace(models, has_kernels=False)) as slow:
        lines: dict[str, Callable[[], Served]] = {
            _ALL_ON: partial(full.run, asks, best, batch),
            "without kernels": partial(slow.run, asks, best, batch),
            "without batching": partial(full.run, asks, best, 1),
            "without prefix cache": partial(full.run, apart, best, batch),
            "without drafts": partial(full.run, asks, Way("plain", 0), batch),
            "all off": partial(slow.run, apart, Way("plain", 0), 1),
        }
        if can_round:
            lines["without int8"] = partial(full.run, asks, Way("plain", None), batch)
        for run in lines.values():
            run()
        measured = lines_by_turns(lines, settings.repeats, "all", _ALL_ON)
    return {"batch": batch, "num_requests": len(asks), "lines": records(measured)}


def records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Lines as a file has them."""
    return [asdict(line) for line in lines]


def repeated(asks: Sequence[Ask], least: int) -> list[Ask]:
    """Return at least so many requests: again from the first, with other seeds."""
    rounds = -(-least // len(asks))
    return [
        replace(ask, seed=ask.seed + turn * len(asks)) for turn in range(rounds) for ask in asks
    ][: max(least, 1)]


def _longest_task(world: World, draft: str) -> str:
    longest = max(world.settings.lengths)
    batch = max(world.settings.batch)

    def num_tokens(task: str) -> float:
        asks = [replace(ask, max_tokens=longest) for ask in world.asks(task)[:_PROBES]]
        return world.engines.run(asks, Way(draft, 0), batch).num_tokens / len(asks)

    return max(world.tasks, key=num_tokens)


def _answers_of(world: World, served: Served) -> Mapping[str, float]:
    """Tokens of a run's answers, and the share that parses as JSON."""
    texts = [world.tokenizer.decode(_text_ids(world, one.token_ids)) for one in served.answers]
    return {
        "num_tokens": served.num_tokens,
        "valid_share": sum(map(_is_json, texts)) / len(texts),
    }


def _text_ids(world: World, token_ids: Sequence[int]) -> list[int]:
    return [token_id for token_id in token_ids if token_id not in world.eos_ids]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


def _with_shared_head(world: World, asks: Sequence[Ask]) -> list[Ask]:
    """Put a head that all share before them: the first prompts, as much as fits."""
    ids = [token_id for prompt in world.encoded for token_id in prompt]
    head = tuple(ids[:SHARED_TOKENS])
    return [replace(ask, prompt_ids=head + ask.prompt_ids) for ask in asks]
