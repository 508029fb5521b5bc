"""Asks the reward about texts as the client would see them, guessed tokens included."""

from __future__ import annotations

from collections.abc import Sequence

from models.protocol.rewards import TextScore
from models.protocol.token_sequence import TokenSequence
from router.ports import Scorer
from router.types import GenerationRequest, LookaheadSettings

_CUT = "\ufffd"  # stands for the beginning of a character


class Judge:
    """Scores what may follow the generated tokens of one session.

    Args:
        scorer: asks the reward.
        request: whose text it is.
        settings: of its look-aheads.
        generated: its tokens so far.

    Attributes:
        num_calls: questions to the reward.
    """

    def __init__(
        self,
        scorer: Scorer,
        request: GenerationRequest,
        settings: LookaheadSettings,
        generated: TokenSequence,
    ) -> None:
        self._scorer = scorer
        self._request = request
        self._text_of = settings.text_of
        self._eos_ids = request.end_ids
        self._generated = generated
        self.num_calls = 0

    async def check(self) -> None:
        """Ask about an empty text: a reward that is refused should touch no engine.

        Raises:
            InvalidRequest: it is refused. Unavailable: nobody answers.
        """
        self.num_calls += 1
        await self._scorer.score("", [""], [False])

    async def scores(self, lookaheads: Sequence[Sequence[int]]) -> list[TextScore]:
        """Return the score of the text with each of the look-aheads.

        Raises:
            InvalidRequest, Unavailable: see `ports.Scorer.score`.
        """
        self.num_calls += 1
        so_far = self._text_of(self._generated.ids)
        shown = [self._shown([*self._generated.ids, *lookahead]) for lookahead in lookaheads]
        text = so_far.rstrip(_CUT)
        if not all(whole.startswith(text) for whole, _ in shown):  # a stop string began in it
            text = ""
        return await self._scorer.score(
            text, [whole[len(text) :] for whole, _ in shown], [is_end for _, is_end in shown]
        )

    async def final_score(self) -> TextScore:
        """Return the score of the whole text, which has ended."""
        self.num_calls += 1
        text, _ = self._shown(self._generated.ids)
        [score] = await self._scorer.score(text, [""], [True])
        return score

    async def close(self) -> None:
        """Free the session of the reward. Idempotent; never raises."""
        await self._scorer.close()

    def _shown(self, ids: Sequence[int]) -> tuple[str, bool]:
        """Return the client's text for the tokens, and whether the answer ends with them."""
        request = self._request
        is_end = len(ids) >= request.max_tokens
        if ids and ids[-1] in self._eos_ids:
            is_end = True
            ids = ids if request.includes_stop else ids[:-1]
        text = self._text_of(ids)
        found = [(text.find(stop), len(stop)) for stop in request.stop if stop in text]
        if found:
            start, length = min(found)
            return text[: start + length * request.includes_stop], True
        return text if is_end else text.rstrip(_CUT), is_end
