"""Every error that may reach a client, as one tree. Standard library only.

    ServingError
    |-- InvalidRequest          the request is wrong; names the field, limit and value
    |   |-- ContextTooLong      prompt (and max_tokens) exceed the context window
    |   |-- UnknownModel        no such model is served here
    |   `-- UnsupportedGrammar  the schema cannot be compiled, or asks for what is not supported
    |-- Overloaded              a bounded queue is full; try again after `retry_after_s`
    |-- DeadlineExceeded        a wait reached its limit
    |-- Unavailable             a part of the service cannot be reached now
    |   |-- LinkLost            the process at the other end of a link is gone
    |   |-- NoReplica           no replica is there: each starts, is lost or does not answer
    |   |-- ReplicasLost        the request was with too many replicas when they were lost
    |   `-- MaskUnavailable     the target got no masks for a constrained session
    |-- ConstraintViolation     a token outside the grammar was about to be sent
    `-- InternalError           a fault of the server

HTTP status codes are chosen in `deployments/api/schemas/requests.py`, nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

# The process is gone, or its model; it ended the lease itself; its link is silent; it did not
# answer in time; it answered what makes no sense.
LossReason = Literal["gone", "ended", "silent", "no_answer", "fault"]


class ServingError(Exception):
    """Base of all errors a client may see.

    Args:
        message: one sentence that names the field, the limit and the value where there are such.
        param: the request field at fault, as the client spelt it (`"temperature"`), if any.
        code: a short machine-readable word, `snake_case`.

    `replicas`: that served the request last, by part; for our own eyes.
    """

    code = "internal_error"
    replicas: Mapping[str, str] = MappingProxyType({})

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(ServingError):
    """The request itself is at fault; sending it again unchanged fails again."""

    code = "invalid_request"


class ContextTooLong(InvalidRequest):
    """Prompt and completion do not fit in the context window."""

    code = "context_length_exceeded"


class UnknownModel(InvalidRequest):
    """The named model is not served here."""

    code = "model_not_found"


class UnsupportedGrammar(InvalidRequest):
    """The grammar cannot be compiled, is too large, or uses an unsupported feature.

    `place`: where in the grammar, where the message begins with that.
    """

    code = "unsupported_grammar"
    place = ""


class UnsupportedReward(InvalidRequest):
    """The reward is not there, has wrong parameters, fails, or takes more than it may."""

    code = "unsupported_reward"


class Overloaded(ServingError):
    """A bounded queue is full.

    Args:
        message: what is full and how large it is.
        retry_after_s: seconds after which a new attempt is sensible.
    """

    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(ServingError):
    """A wait reached its stated limit."""

    code = "deadline_exceeded"


class Unavailable(ServingError):
    """A needed part cannot be reached, after the bounded number of attempts.

    `retry_after_s`: seconds after which a new attempt is sensible.
    """

    code = "unavailable"
    retry_after_s = 1.0


class LinkLost(Unavailable):
    """The process at the other end of a link is gone, or its lease ended."""

    code = "link_lost"

    def __init__(self, message: str, reason: LossReason = "gone") -> None:
        super().__init__(message)
        self.reason: LossReason = reason


class NoReplica(Unavailable):
    """No replica is there to grant a lease: each starts, is lost or does not answer."""


class ReplicasLost(Unavailable):
    """The request was with as many replicas as it may lose; it may be what brings them down."""

    code = "replicas_lost"


class MaskUnavailable(Unavailable):
    """The target got no masks for a constrained session; the grammar must be opened again."""

    code = "mask_unavailable"


class ConstraintViolation(ServingError):
    """A token that the grammar forbids was about to be sent; the request ends instead."""

    code = "constraint_violation"


class InternalError(ServingError):
    """A fault of the server."""
