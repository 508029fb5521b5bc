"""`truncation: "auto"`: the oldest turns of a conversation that does not fit are left out.

What stays begins with a user's message, so that no result loses its call, behind the instructions
in front. As few turns go as let prompt and answer fit; a search by halves finds them, because a
conversation is tokenised for each try.
"""

from __future__ import annotations

from deployments.api.requests import ServedModel, prepare_turn
from deployments.api.schemas.requests import ChatCompletionRequest
from deployments.api.turns.asked_turn import AskedTurn
from models.protocol.errors import ContextTooLong
from router.types import GenerationRequest

_INSTRUCTIONS = ("system", "developer")

Prepared = tuple[GenerationRequest, AskedTurn]


def prepare_truncated(chat: ChatCompletionRequest, model: ServedModel, request_id: str) -> Prepared:
    """`prepare_turn` of a conversation, or of the longest end of it that fits.

    Raises:
        ContextTooLong: not even its last message fits; the error is that of the whole.
        InvalidRequest: as `prepare_turn`.
    """
    try:
        return prepare_turn(chat, model, request_id)
    except ContextTooLong as error:
        whole = error
    messages = chat.messages
    roles = [message.role for message in messages]
    first = next((i for i, role in enumerate(roles) if role not in _INSTRUCTIONS), len(roles))
    starts = [index for index in range(first + 1, len(roles)) if roles[index] == "user"]
    found: Prepared | None = None
    low, high = 0, len(starts)
    while low < high:
        middle = (low + high) // 2
        kept = [*messages[:first], *messages[starts[middle] :]]
        try:
            found = prepare_turn(chat.model_copy(update={"messages": kept}), model, request_id)
            high = middle
        except ContextTooLong:
            low = middle + 1
    if found is None:
        raise whole
    return found
