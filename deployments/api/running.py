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


async def event_stream(
    items: ChoiceItems, job: Job, interval: int = 1
) -> AsyncGenerator[bytes, None]:
    """Encoded events: each block of text, and each end, is one.

    Args:
        items: of all choices; closed in any case.
        job: whose answer it is.
        interval: tokens of all choices that are gathered before their events are yielded. The
            first and each choice's last wait for no other.
    """
    num_choices, marks = len(job.requests), job.marks
    num_gathered: int | None = None  # tokens since the last events; None: there were none yet
    async with aclosing(items):
        bodies = job.writer.opening()  # sent together with the first text
        if marks is not None and marks.has_begun:
            bodies = []
        ends: dict[int, Finished] = {}
        try:
            async for index, item in items:
                bodies += await _bodies(job, index, item)
                if isinstance(item, Finished):
                    ends[index] = item
                    if len(ends) == num_choices:
                        break
                elif num_gathered is not None:
                    num_gathered += len(item.token_ids)
                is_due = num_gathered is None or num_gathered >= interval or index in ends
                if bodies and is_due:
                    yield job.events(bodies)
                    bodies, num_gathered = [], 0
            else:
                raise InternalError("the generation ended without an end")
        except Exception:
            if bodies and num_gathered is not None:  # else the error may have its own status
                yield job.events(bodies)
            raise
        bodies += job.writer.trailing([ends[i] for i in range(num_choices)])
        yield job.events(bodies) + job.done


async def _bodies(job: Job, index: int, item: Delta | Finished) -> list[bytes]:
    """Return the bodies of an item's events; a client that goes on has those before its mark."""
    if isinstance(item, Finished):
        if job.marks is not None:
            job.marks.check_end(index)
        return job.writer.closing(index, item)
    bodies: list[bytes] = []
    for part, is_new in [(item, True)] if job.marks is None else job.marks.parts(index, item):
        of_part = await job.writer.delta(index, part)
        bodies += of_part if is_new else []
    return bodies
