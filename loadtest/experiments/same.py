"""Two OpenAI servers, or one and itself, get the same seeded requests: do their texts differ?

    python -m loadtest same --url http://127.0.0.1:8000 --url http://127.0.0.1:9000
    python -m loadtest same --url http://127.0.0.1:8000 --set 'b_body={"speculation": {"k": 5}}'

All is asked more than once and with more or fewer requests at a time. So a difference can be told
from a server that does not keep its own seeds. One URL: that server against itself, with the fields
of b_body if there are any. No URL: the demo is served and asked with drafts of 5 tokens (A) and
without (B). A row counts the questions of a task and temperature that have two texts.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from loadtest.client.answers import Answer, check_answer
from loadtest.client.difference import Place as TokenPlace
from loadtest.client.difference import first_difference, num_common, place_of, tokens_of
from loadtest.client.http import CHAT, COMPLETIONS
from loadtest.client.sides import CannotAsk, Side
from loadtest.experiments.same_texts import (
    Answers,
    Asked,
    Comparison,
    Question,
    comparisons,
    counts_of,
    differs,
    essence,
    fate_of,
    text_of,
    verdict,
)
from loadtest.frame.prompts import Prompt, load_prompts
from loadtest.trial.checks import Limit
from loadtest.trial.scene import Event, Scene
from loadtest.trial.trial import Trial, pods

_SEEDS = 1 << 31  # below it every server takes a seed
_NUM_LIKELIEST = 5  # log probabilities: every server allows as many
_EXCERPT = 200  # characters of a problem
# Drafts must take part on a server of ours: the planner may find that they do not pay there.
_DRAFTS, _NO_DRAFTS = {"speculation": {"k": 5}}, {"speculation": {"enabled": False}}


# --- what is asked --------------------------------------------------------------------------------


def _sides(scene: Scene) -> dict[str, Side]:
    """Return the sides; there is no B where it would be nothing but A."""
    terms, urls = scene.terms, list(scene.urls) or [scene.base_url]
    usual: tuple[Mapping[str, Any], ...] = (_DRAFTS, _NO_DRAFTS)
    if scene.urls:
        usual = ({}, {})
    found = [
        Side(
            name=name,
            url=url,
            model=getattr(terms, f"{name.lower()}_model"),
            key_variable=getattr(terms, f"{name.lower()}_key_env"),
            fields=_fields(getattr(terms, f"{name.lower()}_body"), default),
            timeout_s=terms.timeout_s,
            num_retries=terms.retries,
        )
        for name, url, default in zip("AB", (urls[0], urls[-1]), usual, strict=True)
    ]
    is_other = len(urls) == 2 or asdict(found[0]) | {"name": "B"} != asdict(found[1])
    return {side.name: side for side in (found if is_other else found[:1])}


def _fields(text: str, default: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        fields = json.loads(text) if text else default
    except ValueError as error:
        raise CannotAsk(f"a_body, b_body: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise CannotAsk(f"a_body, b_body: must be a JSON object, got {text}")
    return fields


def _questions(scene: Scene) -> list[Question]:
    """Return all questions; a plain completion cannot hold a chat."""
    terms = scene.terms
    tasks = None if terms.tasks == ("all",) else terms.tasks
    prompts = load_prompts(terms.prompts, terms.per_task, terms.seed, tasks)
    numbers: Counter[str] = Counter()
    found = []
    for prompt in prompts:
        numbers[prompt.task] += 1
        name = f"{prompt.task} {numbers[prompt.task]}"
        for route, temperature in product(terms.routes, terms.temperatures):
            for number in range(terms.seeds if temperature > 0 else 1):
                seed = random.Random(f"{terms.seed}-{name}-{number}").randrange(_SEEDS)
                body = _prompt_fields(prompt, route)
                if body is None:
                    continue
                body |= {"temperature": temperature, "seed": seed, "max_tokens": terms.tokens}
                drawn = f"{name}, {route}, temperature {temperature:g}, seed {seed}"
                found.append(
                    Question(
                        name=drawn,
                        task=prompt.task,
                        route=route,
                        body=json.dumps(body),
                        temperature=temperature,
                    )
                )
    if not found:
        raise CannotAsk("no question is left: the prompts are chats, the route is for plain texts")
    return found


def _prompt_fields(prompt: Prompt, route: str) -> dict[str, Any] | None:
    if route == "completions" and prompt.text is None:
        return None
    body: dict[str, Any] = (
        {"messages": prompt.chat()} if route == "chat" else {"prompt": prompt.text}
    )
    if prompt.schema is not None:
        schema = {"name": "answer", "schema": json.loads(prompt.schema), "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


@dataclass(frozen=True, kw_only=True)
class AskAll(Event):
    """Ask a side every question, so many at a time, in an order of the run's own."""

    asked: Asked
    sides: Mapping[str, Side]
    answers: Mapping[Question, dict[Asked, Answer]]
    workload: str = "answers"

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """See `Event`.

        Raises:
            CannotAsk: the server refuses the first question, and so would refuse every other.
        """
        return asyncio.run(self._ask(scene.terms.seed))

    async def _ask(self, seed: int) -> dict[str, float]:
        side, asked = self.sides[self.asked.side], self.asked
        ordered = list(self.answers)
        gate = asyncio.Semaphore(asked.crowd)
        tries: list[int] = []
        async with side.opened() as client:
            for first in {one.route: one for one in reversed(ordered)}.values():
                if side.has_answered:
                    break
                answer, _ = await side.read(client, *_request(first, asked.delivery))
                if problem := check_answer(answer):
                    raise CannotAsk(f"{side.name}, {side.url}, {_path(first)}: {problem}")
            side.has_answered = True
            random.Random(f"{seed}-{asked.run}").shuffle(ordered)

            async def one(question: Question) -> None:
                async with gate:
                    read = await side.read(client, *_request(question, asked.delivery))
                self.answers[question][asked] = read[0]
                tries.append(read[1])

            await asyncio.gather(*map(one, ordered))
        own = [answers[asked] for answers in self.answers.values()]
        return {
            "tokens": sum(answer.num_completion_tokens for answer in own),
            "drafted": sum(answer.num_draft_tokens for answer in own),
            "retried": sum(num > 1 for num in tries),
        }


def _path(question: Question) -> str:
    return CHAT if question.route == "chat" else COMPLETIONS


def _request(question: Question, delivery: str) -> tuple[str, dict[str, Any]]:
    usage = {"stream_options": {"include_usage": True}} if delivery == "stream" else {}
    return _path(question), {
        **json.loads(question.body),
        "stream": delivery == "stream",
        **usage,
    }


def _conclude(
    scene: Scene, sides: Mapping[str, Side], answers: Mapping[Question, dict[Asked, Answer]]
) -> None:
    """Count what differs, look for the token where texts part, and say what follows."""
    compared = comparisons(list(sides), scene.terms)
    for one in compared:
        found = {question: differs(one, of) for question, of in answers.items()}
        cells = {(question.task, question.temperature) for question in found}
        for task, temperature in sorted(cells):
            own = [v for q, v in found.items() if (q.task, q.temperature) == (task, temperature)]
            scene.note(f"{task}, T = {temperature:g}", one.name, counts_of(own))
        scene.note("all", one.name, counts_of(list(found.values())))
    extra = scene.result.extra
    fates = Counter(fate_of(of.items()) for of in answers.values())
    extra["fates"] = dict(fates)
    extra["models"] = {name: side.model for name, side in sides.items()}
    extra["differences"] = asyncio.run(_differences(scene, sides, answers, compared))
    for line in extra["differences"][: scene.terms.show]:
        print(json.dumps(line), flush=True)
    extra["unanswered"] = [
        f"{question.name}, of {asked}: {check_answer(answer)[:_EXCERPT]}"
        for question, of in answers.items()
        for asked, answer in of.items()
        if check_answer(answer)
    ]
    if set(fates) == {"same"}:
        print(f"SAME: each of {len(answers)} questions got one text in every way it was asked")
    scene.result.problems += verdict(list(sides), answers, compared, fates)


# --- where texts part -----------------------------------------------------------------------------


async def _differences(
    scene: Scene,
    sides: Mapping[str, Side],
    answers: Mapping[Question, Answers],
    compared: Sequence[Comparison],
) -> list[dict[str, Any]]:
    """Return each pair of texts of a question once: where they part, and at which token."""
    found: dict[object, tuple[Question, Comparison]] = {}
    for one in compared:
        for question, of in answers.items():
            if differs(one, of):
                texts = essence(of[one.first]), essence(of[one.second])
                found.setdefault((question, *texts), (question, one))
    lines = []
    async with AsyncExitStack() as stack:
        clients = {
            name: (side, await stack.enter_async_context(side.opened()))
            for name, side in sides.items()
        }
        for number, (question, one) in enumerate(found.values()):
            pair = answers[question][one.first], answers[question][one.second]
            first, second = (essence(answer) or ("", "") for answer in pair)
            difference = first_difference(first, second)
            assert difference is not None, "texts that differ part somewhere"
            place = None
            if number < scene.terms.locate:
                place = await _locate(clients, question, one, pair, difference.at)
            lines.append(
                {
                    "question": question.name,
                    "comparison": one.name,
                    **asdict(difference),
                    "place": place and asdict(place),
                }
            )
    return lines


async def _locate(
    clients: Mapping[str, Any],
    question: Question,
    compared: Comparison,
    pair: Sequence[Answer],
    at: int,
) -> TokenPlace | None:
    """Return the token at which two answers part; None: nobody can tell.

    The question was asked without log probabilities, because some servers go another way when they
    are wanted. So they count only where the text is the one that was compared. If a server has
    none, /tokenize says how many tokens both texts begin with, as the tokenizer cuts the texts.
    """
    is_chat = question.route == "chat"
    wish = {"logprobs": is_chat or _NUM_LIKELIEST}
    wish |= {"top_logprobs": _NUM_LIKELIEST} if is_chat else {}
    tokens = []
    for asked, known in zip((compared.first, compared.second), pair, strict=True):
        side, client = clients[asked.side]
        path, body = _request(question, asked.delivery)
        answer = await side.ask(client, path, {**body, **wish})
        is_same = not answer.error and text_of(answer) == text_of(known)
        tokens.append(tokens_of(answer.logprobs) if is_same else [])
    if place := place_of(at, *tokens):
        return place
    for name in dict.fromkeys((compared.first.side, compared.second.side)):
        side, client = clients[name]
        cuts = [await side.cut(client, text_of(answer)) for answer in pair]
        if cuts[0] is not None and cuts[1] is not None:
            return TokenPlace(index=num_common(*cuts), source="/tokenize")
    return None


def _ways(scene: Scene) -> Iterator[AskAll]:
    """Yield all ways, sides by turns, so that both meet the machine in the same state."""
    terms, sides = scene.terms, _sides(scene)
    answers: dict[Question, dict[Asked, Answer]] = {one: {} for one in _questions(scene)}
    runs = range(1, terms.runs + 1)
    for run, crowd, delivery, side in product(runs, terms.crowds, terms.deliveries, sides):
        way = f"{side}, {crowd} at a time, {delivery}"
        asked = Asked(side, delivery, crowd, run)
        yield AskAll(way=way, asked=asked, sides=sides, answers=answers)
    _conclude(scene, sides, answers)


SAME = Trial(
    question="do two servers write the same texts, and if not, where do they part",
    terms={
        "a_model": "",  # the first that it lists
        "b_model": "",
        "a_key_env": "",  # variable of the environment with its API key
        "b_key_env": "",
        "a_body": "",  # JSON object of further fields of its requests; null leaves a field out
        "b_body": "",
        "prompts": "tasks",  # or a file of your own
        "tasks": ("all",),
        "per_task": 1000,  # prompts, at most
        "temperatures": (0.0, 0.7, 1.0),
        "tokens": 64,  # of an answer, at most
        "seeds": 1,  # of each prompt above T = 0
        "seed": 1,  # of those seeds and of the order
        "routes": ("chat",),  # completions
        "deliveries": ("stream",),  # whole
        "crowds": (1, 8),  # requests at a time
        "runs": 2,  # 1: no floor is measured
        "timeout_s": 300.0,
        "retries": 3,  # after a lost or refused answer
        "locate": 20,  # look for so many tokens
        "show": 10,  # differences
    },
    quick={"per_task": 1, "tokens": 16, "runs": 1},
    place=pods(num_urls=2),
    events=_ways,
    claims=(Limit(workload="all", measure="differing", at_most=0),),
)
