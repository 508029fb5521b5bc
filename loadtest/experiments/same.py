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
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Literal, NamedTuple

from loadtest.client.answers import Answer, check_answer
from loadtest.client.difference import Place as TokenPlace
from loadtest.client.difference import first_difference, num_common, place_of, tokens_of
from loadtest.client.http import CHAT, COMPLETIONS
from loadtest.client.sides import CannotAsk, Side
from loadtest.frame.prompts import Prompt, load_prompts
from loadtest.report.ratios import wilson
from loadtest.trial.checks import Limit
from loadtest.trial.scene import Event, Scene
from loadtest.trial.trial import Trial, pods

Fate = Literal["same", "differs", "unsteady", "unanswered"]
Essence = tuple[str, str]  # the parts of an answer that must be the same: text and end

_DOUBT = 0.05
_SEEDS = 1 << 31  # below it every server takes a seed
_NUM_LIKELIEST = 5  # log probabilities: every server allows as many
_EXCERPT = 200  # characters of a problem
# Drafts must take part on a server of ours: the planner may find that they do not pay there.
_DRAFTS, _NO_DRAFTS = {"speculation": {"k": 5}}, {"speculation": {"enabled": False}}


@dataclass(frozen=True, kw_only=True)
class Question:
    """One request as far as its text may depend on it; `task` may have several."""

    name: str
    task: str
    route: str
    body: str  # JSON
    temperature: float


class Asked(NamedTuple):
    """A way to ask: the side, streamed or whole, the number of requests at a time, the run."""

    side: str
    delivery: str
    crowd: int
    run: int


Answers = Mapping[Asked, Answer]  # of one question


class Comparison(NamedTuple):
    """Two ways to ask whose texts are compared, question by question."""

    kind: str
    name: str
    first: Asked
    second: Asked


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


# --- what is compared -----------------------------------------------------------------------------


def comparisons(sides: Sequence[str], scene: Scene) -> list[Comparison]:
    """Return all comparisons, A against B first."""
    terms = scene.terms
    crowds, deliveries = terms.crowds, terms.deliveries
    found = []
    for crowd, delivery in product(crowds, deliveries):
        first = Asked("A", delivery, crowd, 1)
        where = f"{crowd} at a time, {delivery}"
        if len(sides) > 1:
            name = f"A against B, {where}"
            found.append(Comparison("between", name, first, first._replace(side="B")))
    for side in sides:
        for crowd, delivery, run in product(crowds, deliveries, range(2, terms.runs + 1)):
            again = Asked(side, delivery, crowd, run)
            name = f"{side} against itself, {crowd} at a time, {delivery}"
            found.append(Comparison("again", name, again._replace(run=1), again))
        first = Asked(side, deliveries[0], crowds[0], 1)
        for crowd in crowds[1:]:
            name = f"{side}: {crowds[0]} at a time against {crowd}, {deliveries[0]}"
            found.append(Comparison("crowd", name, first, first._replace(crowd=crowd)))
        for delivery in deliveries[1:]:
            name = f"{side}: {deliveries[0]} against {delivery}, {crowds[0]} at a time"
            found.append(Comparison("delivery", name, first, first._replace(delivery=delivery)))
    return found


def text_of(answer: Answer) -> str:
    """Return all that the model wrote: what it thought, where it says so, and its answer."""
    return answer.reasoning + answer.text


def essence(answer: Answer) -> Essence | None:
    """Return what must be the same; None: there is no whole answer."""
    return None if check_answer(answer) else (text_of(answer), answer.finish_reason or "")


def differs(comparison: Comparison, answers: Answers) -> bool | None:
    """Return whether a question's two texts differ; None if one of them did not come."""
    first, second = essence(answers[comparison.first]), essence(answers[comparison.second])
    return None if first is None or second is None else first != second


def fate_of(answers: Iterable[tuple[Asked, Answer]]) -> Fate:
    """Classify a question by its texts.

    Returns:
        same: there is one text. differs: each side has one, always, and they are two. unsteady: a
        side has several itself. unanswered: an answer is missing, and nothing else was found.
    """
    texts: dict[str, set[Essence]] = {}
    is_whole = True
    for asked, answer in answers:
        found = essence(answer)
        if found is None:
            is_whole = False
        else:
            texts.setdefault(asked.side, set()).add(found)
    if any(len(of_side) > 1 for of_side in texts.values()):
        return "unsteady"
    if len(set().union(*texts.values())) > 1:
        return "differs"
    return "same" if is_whole else "unanswered"


def excess_chance(num_between_only: int, num_floor_only: int) -> float:
    """Return how likely chance alone lets two servers differ so much more than one from itself.

    Args:
        num_between_only: questions in which A and B differ and the server keeps to itself.
        num_floor_only: questions in which it is the other way round.

    Returns:
        The exact one-sided chance that of all of these as many are of the first sort, if each
        were as likely of either (McNemar, Psychometrika 12 (1947) 153).
    """
    num = num_between_only + num_floor_only
    ways = sum(math.comb(num, one) for one in range(num_between_only, num + 1))
    return ways / 2**num


def _conclude(
    scene: Scene, sides: Mapping[str, Side], answers: Mapping[Question, dict[Asked, Answer]]
) -> None:
    """Count what differs, look for the token where texts part, and say what follows."""
    compared = comparisons(list(sides), scene)
    for one in compared:
        found = {question: differs(one, of) for question, of in answers.items()}
        cells = {(question.task, question.temperature) for question in found}
        for task, temperature in sorted(cells):
            own = [v for q, v in found.items() if (q.task, q.temperature) == (task, temperature)]
            scene.note(f"{task}, T = {temperature:g}", one.name, _counts(own))
        scene.note("all", one.name, _counts(list(found.values())))
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
    scene.result.problems += _verdict(scene, list(sides), answers, compared, fates)


def _counts(found: Sequence[bool | None]) -> dict[str, float]:
    num_differing, num_compared = found.count(True), len(found) - found.count(None)
    share = wilson(num_differing, num_compared)
    return {
        "differing": num_differing,
        "compared": num_compared,
        "share_at_least": share.low,
        "share_at_most": share.high,
    }


def _verdict(
    scene: Scene,
    sides: Sequence[str],
    answers: Mapping[Question, Answers],
    compared: Sequence[Comparison],
    fates: Mapping[Fate, int],
) -> Iterator[str]:
    num, is_once = len(answers), scene.terms.runs == 1
    if fates.get("differs"):
        sure = ", each the same whenever it was asked"
        if is_once:
            sure = "; each was asked once, so a server that drops its seeds looks like this too"
        said = f"DIFFERENT: {fates['differs']} of {num} questions got one text from A and another"
        yield f"{said} from B{sure}"
    for side in sides:
        own = [[one for one in of.items() if one[0].side == side] for of in answers.values()]
        if num_own := sum(fate_of(of) == "unsteady" for of in own):
            said = f"{side} IS NOT ITS OWN MATCH: {num_own} of {num} questions got several texts"
            yield f"{said} from it, with the same seed"
    if fates.get("unsteady") and not is_once:
        yield from _beside_floors(answers, compared)
    if fates.get("unanswered"):
        yield f"UNKNOWN: {fates['unanswered']} of {num} questions lack an answer"


def _beside_floors(
    answers: Mapping[Question, Answers], compared: Sequence[Comparison]
) -> Iterator[str]:
    """Yield if A and B differ more often than every server from itself, beyond chance."""
    for between in (one for one in compared if one.kind == "between"):
        near = (between.first, between.second)
        floors = [one for one in compared if one.kind == "again" and one.first in near]
        pairs = [
            [(differs(between, of), differs(floor, of)) for of in answers.values()]
            for floor in floors
        ]
        rises = all(
            excess_chance(pair.count((True, False)), pair.count((False, True))) < _DOUBT
            for pair in pairs
        )
        own = ", ".join(
            f"{floor.first.side} {[differs(floor, of) for of in answers.values()].count(True)}"
            for floor in floors
        )
        num = [differs(between, of) for of in answers.values()].count(True)
        said = f"more than each from itself ({own}): B is not A"
        if not rises:
            said = f"no more than chance allows beside each from itself ({own})"
        yield f"{between.name}: {num} of {len(answers)} differ, {said}"


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
