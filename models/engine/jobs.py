"""The messages an engine is working on, one job a session, and the replies on their way out.

A job begins when its message is admitted, and waits for rows and masks. It ends with its last
answer, or when a newer message of the session takes its place. Knows nothing of passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from models.engine.sampler import is_drawable
from models.grammar.masks import MaskClient
from models.protocol.messages import EngineReply
from models.scheduler.sessions import Job, Session

Outgoing = tuple[object, EngineReply]  # opaque address, reply


class Jobs:
    """The running jobs of one engine.

    Args:
        masks: asked for the masks of constrained sessions.
        clock: stamps answers.
    """

    def __init__(self, masks: MaskClient, clock: Callable[[], float]) -> None:
        self._masks = masks
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._outgoing: list[Outgoing] = []

    def __iter__(self) -> Iterator[tuple[Session, Job]]:
        """Sessions with their jobs, in the order these began; jobs may end meanwhile."""
        for session in list(self._sessions.values()):
            if session.job is not None:
                yield session, session.job

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self, session: Session, job: Job) -> None:
        """Make `job` the session's running one; its tokens hold the job's rows already."""
        session.job = job
        self._sessions[session.session_id] = session
        self.ask_masks(session, job)

    def ask_masks(self, session: Session, job: Job) -> None:
        """Queue the request for the masks of the job's rows; none for an unconstrained session.

        Those that it waited for are no longer wanted.
        """
        self._masks.drop(job.mask)
        endpoint = session.opened.constraint
        if endpoint is not None:
            job.mask = self._masks.ask(session, endpoint.epoch, job.num_logits)

    def end(self, session: Session) -> None:
        """End the session's job, if it has one. Idempotent."""
        if session.job is not None:
            self._masks.drop(session.job.mask)
            session.job = None
            self._sessions.pop(session.session_id, None)

    def waiting(self) -> list[Session]:
        """Sessions whose jobs need rows in a pass."""
        return [session for session, job in self if job.logits is None and not job.is_forked]

    def are_any_held(self) -> bool:
        """Return whether a job has its logits and waits for its masks."""
        return any(job.logits is not None for _, job in self)

    def released(self, in_pass: Sequence[tuple[Session, Job]]) -> list[tuple[Session, Job]]:
        """Jobs held since an earlier pass, so not `in_pass`, whose masks have come."""
        current = {id(job) for _, job in in_pass}
        return [(s, job) for s, job in self if id(job) not in current and is_drawable(job)]

    def answer(self, session: Session, reply: EngineReply) -> None:
        """Answer the session's current message; the answer is kept for repeats of it."""
        session.answers.append(reply)
        session.last_active_s = self._clock()
        self.send(session.reply_to, reply)

    def send(self, reply_to: object, reply: EngineReply) -> None:
        """Have a reply leave with the next step."""
        self._outgoing.append((reply_to, reply))

    @property
    def has_replies(self) -> bool:
        """True if a reply is to leave."""
        return bool(self._outgoing)

    def take_replies(self) -> list[Outgoing]:
        """Return the replies to leave now, each once."""
        replies, self._outgoing = self._outgoing, []
        return replies
