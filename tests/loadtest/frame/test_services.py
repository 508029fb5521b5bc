"""The stage `http` asks a service that somebody else runs, and writes what the engines write."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import yaml

from deployments.config.serve_file import read_serve_text
from loadtest.experiments.registry import EXPERIMENTS
from loadtest.frame.pairs import find_models
from loadtest.frame.runs import Ask, Run
from loadtest.frame.services import CONFIG, ServiceStage, change_config
from loadtest.frame.stages import Models
from loadtest.frame.ways import Way
from tests.harness.local import demo_tokenizer
from tests.harness.served_demo import demo_over_http

MODELS = find_models("demo")


def ask_all(url: str, *ways: Way) -> list[Run]:
    prompt = demo_tokenizer().encode_chat([{"role": "user", "content": "Write a short story."}])
    asks = [Ask(prompt_ids=tuple(prompt), max_tokens=24, temperature=1.0, seed=n) for n in (1, 2)]
    with ServiceStage(replace(MODELS, url=url)) as stage:
        return [stage.run(asks, way, batch=2) for way in ways]


async def test_a_services_answers_do_not_depend_on_the_way_and_are_counted() -> None:
    async with demo_over_http() as target:
        plain, drafted = await asyncio.to_thread(
            ask_all, target.root_url, Way(k=0), Way(k=4, drafter="draft_model")
        )
        with pytest.raises(ValueError, match="somebody else's service has its own"):
            await asyncio.to_thread(ask_all, target.root_url, HEADS_ALONE)
    assert plain.contents == drafted.contents
    assert plain.contents[0] != plain.contents[1]  # two seeds
    assert plain.num_tokens == drafted.num_tokens == 48
    assert plain.stats.num_draft_tokens == 0
    assert drafted.stats.num_accepted_by["draft_model"] > 0
    assert drafted.stats.num_rounds == 48 - drafted.stats.num_accepted_draft_tokens
    assert all(one.began_s < one.first_s <= one.ended_s for one in drafted.answers)


SUFFIX = Way(speculation={"method": "suffix", "suffix_decoding_max_tree_depth": 24})
HEADS_ALONE = EXPERIMENTS["heads"].ways["mtp"]


@pytest.mark.parametrize(
    ("models", "way", "drafts"),
    [
        (MODELS, Way(), ["Draft"]),
        (replace(MODELS, drafts={}), SUFFIX, []),
        (MODELS, HEADS_ALONE, []),
    ],
    ids=["draft model", "suffix decoding", "heads"],
)
def test_a_service_of_other_models_has_a_config_that_is_served(
    models: Models, way: Way, drafts: list[str]
) -> None:
    tree = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    change_config(models, way)(tree)
    served = read_serve_text(yaml.safe_dump(tree))
    names = {placement.name for placement in served.placements}
    assert names == {"Router", "Target", "Constraint", *drafts}
    assert served.config.target.heads == way.target.get("heads")
