"""Runs one request's choices and writes their answer: whole, or event by event."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing

from deployments.api.choices import ChoiceItems
from deployments.api.jobs import Job
from deployments.api.observer import ChoiceObserver
from deployments.api.schemas.grammar_fields import naming_field, naming_loosened
from deployments.api.writing.writers import Writer
from models.protocol.errors import InternalError
from router.types import Delta, Finished


async def run_choice(
    index: int,
    items: AsyncGenerator[Delta | Finished, None],
    *,
    turn: AbstractAsyncContextManager[None],
    slot: AbstractAsyncContextManager[None],
    observer: ChoiceObserver,
    grammar_fields: Sequence[str],
) -> ChoiceItems:
    """Run one choice in its slot; the only generator between the router's and the answer's.

    Args:
        index: the choice's, within the request.
        items: of the choice, not begun yet; closed in any case.
        turn: of the choice among those of its request; waited for before anything else.
        slot: the right to run, waited for before `items` begin and kept until they end.
        observer: is shown all of it, the wait for the slot included.
        grammar_fields: the request's fields that constrain the answer, for refusals.
    """
    async with aclosing(items), turn:
        with observer, naming_field(*grammar_fields):
            async with slot:
                observer.admit()
                async for item in items:
                    item = naming_loosened(item, grammar_fields)
                    observer.add(item)
                    yield index, item


async def whole_body(items: ChoiceItems, num_choices: int, writer: Writer) -> list[bytes]:
    """Return the body of an answer that is not streamed, in chunks."""
    ends: dict[int, Finished] = {}
    async with aclosing(items):
        async for index, item in items:
            if isinstance(item, Delta):
                await writer.add(index, item)
                continue
            ends[index] = item
            if len(ends) == num_choices:
                return writer.whole([ends[i] for i in range(num_choices)])
    raise InternalError("the generation ended without an end")


async def event_stream(items: ChoiceItems, job: Job) -> AsyncGenerator[bytes, None]:
    """Encoded events, one for each block of text, then the ends.

    Args:
        items: of all choices; closed in any case.
        job: whose answer it is.
    """
    writer, num_choices, marks = job.writer, len(job.requests), job.marks
    async with aclosing(items):
        bodies = writer.opening()  # sent together with the first text
        if marks is not None and marks.has_begun:
            bodies = []
        ends: dict[int, Finished] = {}
        async for index, item in items:
            if isinstance(item, Delta):
                for part, is_new in [(item, True)] if marks is None else marks.parts(index, item):
                    of_part = await writer.delta(index, part)
                    bodies += of_part if is_new else []
            else:
                ends[index] = item
                if marks is not None:
                    marks.check_end(index)
                bodies += writer.closing(index, item)
                if len(ends) == num_choices:
                    break
            if bodies:
                yield job.events(bodies)
                bodies = []
        else:
            raise InternalError("the generation ended without an end")
        bodies += writer.trailing([ends[i] for i in range(num_choices)])
        yield job.events(bodies) + job.done
