"""lm-eval's `local-completions`: how it scores, with token ids and with texts, and a whole task."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager

from loadtest.clients.scripts.checks import Checks, Service, expect

checks = Checks()

PAIRS = [
    ("Once upon a time there was a", " dog"),
    ("Once upon a time there was a", " dog who liked to play with a ball."),
    ("The dog ran to the", " ball and barked"),
    ("Lily saw a", " zebra made of glass"),
]
TASK = {
    "task": "two_ends",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{start}}",
    "doc_to_choice": "{{ends}}",
    "doc_to_target": "label",
    "metric_list": [{"metric": "acc"}],
}
DOCS = [
    {"start": "Once upon a time there was a little", "ends": ["girl", "%%%"], "label": 0},
    {"start": "The dog ran to the", "ends": ["qzx qzx", "ball"], "label": 1},
]


def model_of(service: Service, *, tokenized: bool) -> LocalCompletionsAPI:
    return LocalCompletionsAPI(
        model=service.model,
        base_url=f"{service.base_url}/completions",
        tokenizer=service.tokenizer,
        tokenized_requests=tokenized,
        max_length=1024,
        batch_size=1,
        max_retries=1,
    )


def scores(service: Service, *, tokenized: bool) -> list[tuple[float, bool]]:
    asked = [
        Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=index)
        for index, pair in enumerate(PAIRS)
    ]
    found = model_of(service, tokenized=tokenized).loglikelihood(asked, disable_tqdm=True)
    expect(all(math.isfinite(score) and score < 0 for score, _ in found), f"scores {found}")
    return [(float(score), bool(is_greedy)) for score, is_greedy in found]


@checks.named("loglikelihood: token ids")
def tokenized(service: Service) -> str:
    found = scores(service, tokenized=True)
    expect(found[0][0] > found[1][0], "a longer continuation is likelier than its beginning")
    expect(found[2][0] > found[3][0], f"nonsense is likelier: {found}")
    return str(found)


@checks.named("loglikelihood: texts give what token ids give")
def texts(service: Service) -> str:
    ids, found = scores(service, tokenized=True), scores(service, tokenized=False)
    for one, other in zip(ids, found, strict=True):
        expect(math.isclose(one[0], other[0], abs_tol=0.02), f"{ids} and {found}")
        expect(one[1] == other[1], f"greedy: {ids} and {found}")
    return str(found)


@checks.named("loglikelihood_rolling")
def rolling(service: Service) -> str:
    text = "Once upon a time there was a dog who liked to play with a ball."
    asked = [Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=0)]
    [found] = model_of(service, tokenized=True).loglikelihood_rolling(asked, disable_tqdm=True)
    expect(math.isfinite(found) and found < 0, f"score {found}")
    return str(found)


@checks.named("generate_until")
def generated(service: Service) -> str:
    options = {"until": ["\n\n"], "max_gen_toks": 30, "do_sample": False}
    asked = [
        Instance(
            request_type="generate_until", doc={}, arguments=("Once upon a time", options), idx=0
        )
    ]
    [found] = model_of(service, tokenized=True).generate_until(asked, disable_tqdm=True)
    expect(found, "no text")
    return repr(found)


@checks.named("simple_evaluate: a task of two choices")
def task(service: Service) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        docs = folder / "docs.jsonl"
        docs.write_text("".join(f"{json.dumps(doc)}\n" for doc in DOCS), encoding="utf-8")
        files: dict[str, Any] = {"data_files": {"test": str(docs)}}
        content = json.dumps({**TASK, "dataset_kwargs": files})  # YAML takes JSON
        (folder / "two_ends.yaml").write_text(content, encoding="utf-8")
        found = lm_eval.simple_evaluate(
            model=model_of(service, tokenized=True),
            tasks=["two_ends"],
            task_manager=TaskManager(include_path=str(folder), include_defaults=False),
            bootstrap_iters=0,
        )
    accuracy = found["results"]["two_ends"]["acc,none"]
    expect(accuracy == 1.0, f"accuracy {accuracy}")
    return f"accuracy {accuracy}"


if __name__ == "__main__":
    checks.main()
