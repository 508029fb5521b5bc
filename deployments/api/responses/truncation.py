"""`truncation: "auto"`: the oldest turns of a conversation that does not fit are left out.

The kept part begins with a user's message, so that no result loses its call. The instructions stay
in front of it. The fewest turns go that let prompt and answer fit. A search by halves finds them,
because a conversation is tokenised for each try. An answer of more tokens than the window has is
cut to what the conversation leaves.
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
    whole: Prepared | None = None
    refusal: ContextTooLong | None = None
    try:
        whole = prepare_turn(chat, model, request_id)
    except ContextTooLong as error:
        refusal = error
    if whole is not None and _has_room(whole, chat, model):
        return whole
    messages = chat.messages
    roles = [message.role for message in messages]
    first = next((i for i, role in enumerate(roles) if role not in _INSTRUCTIONS), len(roles))
    starts = [index for index in range(first + 1, len(roles)) if roles[index] == "user"]
    found: Prepared | None = None
    low, high = 0, len(starts)
    while low < high:
        middle = (low + high) // 2
        kept = [*messages[:first], *messages[starts[middle] :]]
        cut = _prepared(chat.model_copy(update={"messages": kept}), model, request_id)
        if cut is not None and _has_room(cut, chat, model):
            found, high = cut, middle
        else:
            low = middle + 1
    if found is not None:
        return found
    if whole is None:
        assert refusal is not None, "it is prepared or refused"
        raise refusal
    return whole


def _prepared(chat: ChatCompletionRequest, model: ServedModel, request_id: str) -> Prepared | None:
    try:
        return prepare_turn(chat, model, request_id)
    except ContextTooLong:
        return None


def _has_room(prepared: Prepared, chat: ChatCompletionRequest, model: ServedModel) -> bool:
    """Return whether the requested length fits, or is more than any conversation allows."""
    asked = chat.max_completion_tokens
    return asked is None or asked >= model.max_model_len or prepared[0].max_tokens >= asked
