"""References: the bare engine and transformers answer what they are asked, and refuse the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from loadtest.frame.pairs import find_models
from loadtest.frame.references import BareStage, TransformersStage
from loadtest.frame.runs import Ask
from loadtest.frame.stages import EngineStage
from loadtest.frame.ways import Way
from loadtest.report.prompts import demo_prompts

ENGINE = {"num_threads": 1, "max_model_len": 256, "kv_cache_tokens": 1024}
MODELS = replace(find_models("demo"), engine=ENGINE)


def asks() -> Sequence[Ask]:
    prompts = demo_prompts(3, kind="story")
    return [Ask(prompt_ids=tuple(prompt), max_tokens=6) for prompt in prompts]


def test_the_bare_engine_writes_the_texts_of_plain_decoding() -> None:
    with BareStage(MODELS) as bare, EngineStage(MODELS) as engine:
        runs = [
            bare.run(asks(), Way(k=0), 2),
            bare.run(asks(), Way(k=0), 1),
            engine.run(asks(), Way(k=0), 1),
        ]
        with pytest.raises(ValueError, match="k: the bare engine decodes without drafts"):
            bare.run(asks(), Way(k=3), 1)
    assert runs[0].contents == runs[1].contents == runs[2].contents
    assert all(
        one.began_s < one.first_s < one.ended_s and one.num_tokens == 6
        for run in runs
        for one in run.answers
    )


def test_transformers_answers_plain_and_with_an_assistant() -> None:
    with TransformersStage(MODELS) as stage:
        runs = [
            stage.run(asks(), way, batch)
            for way, batch in ((Way(k=0), 1), (Way(k=0), 3), (Way(k=2), 1), (Way(), 1))
        ]
        with pytest.raises(ValueError, match="assistants answer one request at a time"):
            stage.run(asks(), Way(k=2), 2)
        with pytest.raises(ValueError, match="greedily and without grammars"):
            stage.run([replace(asks()[0], temperature=0.7)], Way(k=0), 1)
    assert all(len(content) == 6 for run in runs for content in run.contents)
    assert all(run.tokens_per_s > 0.0 for run in runs)
