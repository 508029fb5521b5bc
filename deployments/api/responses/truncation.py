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
    whole: Prepared | ContextTooLong
    try:
        whole = prepare_turn(chat, model, request_id)
        if _has_room(whole, chat, model):
            return whole
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
            cut = prepare_turn(chat.model_copy(update={"messages": kept}), model, request_id)
            has_room = _has_room(cut, chat, model)
        except ContextTooLong:
            has_room = False
        if has_room:
            found, high = cut, middle
        else:
            low = middle + 1
    if found is not None:
        return found
    if isinstance(whole, ContextTooLong):
        raise whole
    return whole


def _has_room(prepared: Prepared, chat: ChatCompletionRequest, model: ServedModel) -> bool:
    """Return whether the requested length fits, or is more than any conversation allows."""
    asked = chat.max_completion_tokens
    return asked is None or asked >= model.max_model_len or prepared[0].max_tokens >= asked
