"""Answers to requests: gathered from events, compared with others, held to their own terms."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass

from loadtest.fuzz.engines.grammars import disobedience
from loadtest.fuzz.engines.pair import fuzz_tokenizer
from models.protocol.errors import ServingError
from router.types import Delta, Finished, GenerationRequest, Generator, ShownToken

_COMPARED = (
    *("finish_reason", "num_tokens", "ids", "text", "shown", "prompt_logprobs"),
    "choice_logprobs",
)


@dataclass(slots=True)
class Answer:
    """All that a client could see of one answer; `error` instead of an end where it failed."""

    ids: tuple[int, ...] = ()
    text: str = ""
    shown: tuple[ShownToken, ...] = ()
    prompt_logprobs: tuple[bytes, ...] | None = None  # packed
    choice_logprobs: tuple[float, ...] = ()
    finish_reason: str = ""
    num_tokens: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    error: ServingError | None = None

    def take(self, event: Delta | Finished) -> None:
        """Add one event."""
        if isinstance(event, Finished):
            self.finish_reason = event.finish_reason
            self.num_tokens = event.num_completion_tokens
            self.num_drafted = event.speculation.num_draft_tokens
            self.num_accepted = event.speculation.num_accepted_draft_tokens
            return
        self.ids += event.token_ids
        self.text += event.text
        self.shown += event.shown
        self.choice_logprobs += event.choice_logprobs
        if event.prompt_logprobs is not None:
            self.prompt_logprobs = event.prompt_logprobs


async def answer_of(generator: Generator, request: GenerationRequest) -> Answer:
    """Run a request to its end, or to the error a client would be told."""
    answer = Answer()
    detokenizer = fuzz_tokenizer().detokenizer(())
    try:
        async with aclosing(generator.generate(request, detokenizer)) as events:
            async for event in events:
                answer.take(event)
    except ServingError as error:
        answer.error = error
    return answer


def difference(name: str, expected: Answer, got: Answer) -> list[str]:
    """Return the differences of two answers; none if they are equal to the last bit."""
    if str(expected.error or "") != str(got.error or ""):
        return [f"{name}: error {got.error!r}, alone it was {expected.error!r}"]
    return [
        f"{name}: {field} differ: {_first_difference(one, other)}"
        for field in _COMPARED
        if (one := getattr(expected, field)) != (other := getattr(got, field))
    ]


def broken_terms(request: GenerationRequest, answer: Answer) -> list[str]:
    """Return the request's own terms that an answer breaks, for any random choice."""
    if answer.error is not None:
        return []
    complaints = [*_wrong_end(request, answer), *_wrong_text(request, answer)]
    if request.sampling.num_logprobs >= 0 and not request.stop:
        num_due = len(answer.ids) - (answer.ids[-1] in own_ends(request))
        num_due += request.includes_stop and answer.ids[-1] in own_ends(request)
        if len(answer.shown) != num_due:
            complaints.append(f"{len(answer.shown)} logprobs, {num_due} were due")
    return [f"{request.request_id}: {complaint}" for complaint in complaints]


def own_ends(request: GenerationRequest) -> set[int]:
    """Return the ids that end a request's text."""
    eos_ids = () if request.ignore_eos else request.eos_ids
    return {*eos_ids, *request.stop_token_ids}


def _wrong_end(request: GenerationRequest, answer: Answer) -> list[str]:
    ends, ids = own_ends(request), answer.ids
    complaints = []
    if not 1 <= len(ids) <= request.max_tokens or len(ids) != answer.num_tokens:
        complaints.append(
            f"{len(ids)} tokens, {answer.num_tokens} counted, at most {request.max_tokens}"
        )
    if ends & set(ids[:-1]):
        complaints.append(f"goes on after an end: {ids}")
    is_ended = bool(ids) and ids[-1] in ends
    # Only the end may follow a complete text of its grammar, however early that is.
    if is_ended and len(ids) <= request.sampling.min_tokens and request.grammar is None:
        complaints.append(f"ends with token {len(ids)} of at least {request.sampling.min_tokens}")
    if answer.finish_reason == "length" and (is_ended or len(ids) != request.max_tokens):
        complaints.append(f"finish reason length after {len(ids)} tokens, ended: {is_ended}")
    if answer.finish_reason == "stop" and not is_ended and not _has_stop(request, _decoded(ids)):
        complaints.append(f"finish reason stop, but nothing stops {answer.text!r}")
    return complaints


def _wrong_text(request: GenerationRequest, answer: Answer) -> list[str]:
    is_ended = bool(answer.ids) and answer.ids[-1] in own_ends(request)
    shown_ids = answer.ids[:-1] if is_ended and not request.includes_stop else answer.ids
    whole = _decoded(shown_ids)
    complaints = []
    if not whole.startswith(answer.text):
        complaints.append(f"text {answer.text!r} is not that of its tokens, {whole!r}")
    if not request.stop and answer.text != whole:
        complaints.append(f"text {answer.text!r} ends before that of its tokens, {whole!r}")
    is_early = request.sampling.min_tokens > 0 or request.includes_stop
    if not is_early and _has_stop(request, answer.text):
        complaints.append(f"a stop string is in {answer.text!r}")
    if request.grammar is not None and is_ended and answer.ids[-1] in request.eos_ids:
        body = _decoded(answer.ids[:-1])
        if complaint := disobedience(request.grammar, body):
            complaints.append(complaint)
    return complaints


def _has_stop(request: GenerationRequest, text: str) -> bool:
    return any(stop in text for stop in request.stop)


def _decoded(ids: tuple[int, ...]) -> str:
    detokenizer = fuzz_tokenizer().detokenizer(())
    return detokenizer.push(ids) + detokenizer.flush()


def _first_difference(one: object, other: object) -> str:
    if isinstance(one, tuple) and isinstance(other, tuple):
        pairs = zip(one, other, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
        return f"from {at}: {one[at : at + 3]} alone, {other[at : at + 3]} now"
    return f"{one!r} alone, {other!r} now"
