"""Guesses of a smaller draft model change no text, and save passes of the larger one."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from deployments.local.pool import LocalEnginePool
from loadtest.report.prompts import demo_prompts
from models.protocol.messages import Grammar
from router.limits import SpeculationLimits
from tests.cases.grammar import TEN_SCHEMAS
from tests.harness.local import (
    DEMO,
    NO_LOOKUP,
    answers,
    demo_grammar_host,
    demo_tokenizer,
    local_service,
    make_request,
)

PROMPTS = ([7, 8, 9, 7, 8], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], list(range(40, 80)) * 2)


CHAINED = NO_LOOKUP.model_copy(update={"drafted_by": {"draft_model": "tiny"}})


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "seeded"])
async def test_a_smaller_draft_model_changes_no_text(
    tiny_target: str, tiny_draft: str, temperature: float
) -> None:
    """Three models of which none agrees with another throughout."""
    texts, guessed = [], 0
    for speculation in (NO_LOOKUP, CHAINED):
        async with local_service(
            Path(tiny_target),
            Path(tiny_target),
            further_drafts={"tiny": Path(tiny_draft)},
            speculation=speculation.model_copy(update={"draft_shares": {"draft_model": 1.0}}),
            draft_quantization="q8",  # the target's weights, nearly
        ) as service:
            for k in (0, 5, None):
                found = await answers(service, PROMPTS, temperature, k)
                texts.append([ids for ids, _ in found])
                guessed += sum(end.speculation.num_guess_tokens for _, end in found)
                drafted_by = {name for _, end in found for name in end.speculation.num_drafted_by}
                assert drafted_by <= {"draft_model"}, "the smaller one drafts for no target"
            assert await service.freed()
    assert all(text == texts[0] for text in texts)
    assert guessed > 0


@pytest.fixture
def deep_target(tiny_target: str, tmp_path: Path) -> Path:
    """The same function as `tiny_target`, with 14 more layers that add nothing."""
    shallow: Any = LlamaForCausalLM.from_pretrained(tiny_target)
    config = copy.deepcopy(shallow.config)
    config.num_hidden_layers += 14
    config.layer_types = None
    deep: Any = LlamaForCausalLM(config).to(shallow.dtype)
    deep.load_state_dict(shallow.state_dict(), strict=False)
    for layer in deep.model.layers[shallow.config.num_hidden_layers :]:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    deep.save_pretrained(tmp_path)
    return tmp_path


async def test_what_a_smaller_draft_model_says_rightly_saves_draft_passes(
    tiny_target: str, deep_target: Path
) -> None:
    """It always says what the larger one says, in a fraction of the time."""
    num_passes, stats, texts = {}, {}, []
    for name, speculation in {"alone": NO_LOOKUP, "chained": CHAINED}.items():
        async with local_service(
            Path(tiny_target),
            deep_target,
            further_drafts={"tiny": Path(tiny_target)},
            speculation=speculation,
        ) as service:
            assert service.draft is not None
            asked = make_request("s", PROMPTS[0], k=6, max_tokens=200, drafter="draft_model")
            ids, finished, _ = await service.generate(asked)
            texts.append(ids)
            num_passes[name] = service.draft.load().num_passes
            stats[name] = finished.speculation
            assert await service.freed()
    assert texts[0] == texts[1]
    assert stats["alone"].num_guess_tokens == 0
    guessed, right = stats["chained"].num_guess_tokens, stats["chained"].num_right_guess_tokens
    assert right == guessed > 0
    # A pass for each drafted token but for those guessed rightly, and those that read the prompt.
    # How many rounds draft at all is not the same each time: some end before it is read.
    for name, of in stats.items():
        num_steps = of.num_draft_tokens - of.num_right_guess_tokens
        assert 1 <= num_passes[name] - num_steps <= 3
    assert stats["chained"].num_accepted_draft_tokens == stats["chained"].num_draft_tokens


async def test_a_smaller_draft_model_that_is_lost_costs_no_draft(
    tiny_target: str, tiny_draft: str
) -> None:
    async with local_service(
        Path(tiny_target),
        Path(tiny_draft),
        further_drafts={"tiny": Path(tiny_draft)},
        speculation=CHAINED,
    ) as service:
        asked = make_request("s", PROMPTS[0], k=4, max_tokens=40, drafter="draft_model")
        expected, _, _ = await service.generate(asked)
        pool = service.services.draft_pools["tiny"]
        assert isinstance(pool, LocalEnginePool)
        pool.fail("killed")
        found, finished, _ = await service.generate(asked)
        assert found == expected
        assert finished.speculation.num_drafted_by["draft_model"] > 0
        assert finished.speculation.num_guess_tokens == 0


async def test_guesses_under_a_grammar() -> None:
    schema = json.dumps(TEN_SCHEMAS["nested"])
    grammar = Grammar(kind="json_schema", text=schema)
    prompts = demo_prompts(3, kind="extraction")
    texts = []
    for speculation in (SpeculationLimits(), CHAINED):
        async with local_service(
            DEMO / "target",
            DEMO / "draft",
            further_drafts={"tiny": DEMO / "draft"},
            grammar_host=demo_grammar_host(),
            speculation=speculation,
        ) as service:
            for k in (5, None):
                outcomes = await asyncio.gather(
                    *(
                        service.generate(
                            make_request(
                                f"{k}-{i}",
                                prompt,
                                k=k,
                                grammar=grammar,
                                temperature=0.7,
                                seed=i,
                                eos_ids=demo_tokenizer().eos_ids,
                            )
                        )
                        for i, prompt in enumerate(prompts)
                    )
                )
                texts.append([ids for ids, _, _ in outcomes])
    assert all(text == texts[0] for text in texts)
