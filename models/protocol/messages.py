"""The messages between router, engines and constraint service. Needs msgspec only.

Every engine message carries the header `(session_id, epoch, seq, base_len, prefix_hash)`. It means:
make this session's cache exactly `base_len` tokens long, then append these tokens. There is no
rollback message: the next `base_len` is the rollback.

- `epoch` names one life of an engine process; it comes with the lease.
- `seq` rises by one per message of a session towards one engine. An engine drops a lower one,
  repeats its stored answer for an equal one, and acts on a higher one.
- `prefix_hash` is `TokenSequence.hash_at(base_len)`. The answer is `NeedPrefix` if it does not
  match the engine's tokens, or if the engine holds fewer. An unknown session or epoch is answered
  by `NeedOpen`. The sender then sends the missing part. Failover is the same path.
- Times travel as durations in milliseconds, never as clock readings.
- A frame is a msgpack array of such messages: everything that was ready in one tick.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from models.protocol.choosing import Choose as Choose
from models.protocol.choosing import Chosen as Chosen
from models.protocol.forced import NOTHING_FORCED, Forced
from models.protocol.grammars import Grammar as Grammar  # most know it from here
from models.protocol.grammars import GrammarCheck, GrammarChecked, Loosened
from models.protocol.leases import Endpoint as Endpoint
from models.protocol.leases import LeaseGrant as LeaseGrant
from models.protocol.leases import LeaseRefused as LeaseRefused
from models.protocol.leases import LeaseRequest as LeaseRequest
from models.protocol.parts import DraftTest as DraftTest
from models.protocol.parts import Inspection as Inspection
from models.protocol.parts import OfSession, Question, Reply
from models.protocol.parts import Timing as Timing
from models.protocol.parts import TokenLogprobs as TokenLogprobs
from models.protocol.rewards import RewardRefused, RewardScore, RewardScored
from models.protocol.rules import COUPLED, check_name

MAX_DRAFT_TOKENS = 64  # the highest k that can be configured; a pass has one row more
Verification = str  # the name of one of `rules.RULES`
Cut = Literal["", "eos", "mask_late", "mask_missing", "context", "starved", "deadline"]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """The terms by which tokens are sampled and drafts are verified. `temperature` 0 is greedy.

    Off are `top_k` 0, `top_p` 1, `min_p` 0, penalties 0 and `repetition_penalty` 1. Presence and
    frequency penalty look at generated tokens, the repetition penalty at the prompt as well.
    `logit_bias` holds pairs of a token id and the number added to its logit. An eos is not sampled
    in the first `min_tokens` tokens. The last token of one of `bad_words` is not sampled after its
    others in generated text. Ids that the model lacks are never sampled. `num_logprobs`: -1 none, 0
    of the committed token, n of n likeliest too.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0  # 64-bit unsigned; the noise of a position is a function of (seed, position)
    verification: Verification = COUPLED.name
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    num_logprobs: int = -1
    num_prompt_logprobs: int = -1  # the same for the prompt
    masks_logprobs: bool = False  # as if there were no tokens but those a constraint allows

    def __post_init__(self) -> None:
        """Refuse a rule that is not known here (ValueError), when it is decoded as well."""
        check_name(self.verification)


class DraftProbs(msgspec.Struct, frozen=True, kw_only=True):
    """The distributions that the tokens of a draft were sampled from, for rules that need them.

    Row i is of draft token i: `num_pairs` token ids and probabilities (little-endian int32 and
    float32). The probabilities sum to 1, padded with probability 0. The token was sampled from
    these, bit for bit.
    """

    num_pairs: int
    token_ids: bytes  # [num_tokens * num_pairs] int32
    probs: bytes  # [num_tokens * num_pairs] float32


# --- router -> engine -------------------------------------------------------------------------


class Open(OfSession, frozen=True, kw_only=True, tag="open"):
    """Start a session, or renew its terms: it keeps its tokens and their KV. Idempotent. No answer.

    Only the tokens stay if the new terms have another `cache_salt` or `adapter`.
    """

    sampling: Sampling
    eos_ids: list[int]
    prompt_len: int  # tokens before the first generated one; grammar state starts there
    constraint: Endpoint | None = None  # supplies the masks; None: unconstrained
    cache_salt: str = ""  # sessions share cached prefixes only with those of the same salt
    matcher: str = ""  # session there whose matcher's masks these are; "": of this id
    # Its text is mostly taken back, and shared only once the sender names it. A session that
    # goes back into a shared block loses it, and all of the block is computed again.
    is_tentative: bool = False
    adapter: str = ""  # of the target's `lora_modules`, by its name; "": the model itself
    goes_first: bool = False  # its client has less than its share: its prompt goes before others'

    @property
    def salt(self) -> tuple[str, str]:
        """The words that sessions which may share KV have in common: KV hangs on the adapter."""
        return self.adapter, self.cache_salt


class Propose(Question, frozen=True, kw_only=True, tag="propose"):
    """Draft up to `num_draft_tokens` tokens after `base_len + len(tokens)` committed ones.

    The engine may draft on after up to `ahead` outcomes of the verification meanwhile. It changes
    no answer, and makes later ones come sooner.

    If `replays` is set, the answer has the model's token at the place of each token of `guess`. One
    more follows behind the last. Each is sampled given the guess before it, right or wrong.
    """

    num_draft_tokens: int  # >= 1
    deadline_ms: float  # from arrival; then the answer is what has been drafted
    guess: list[int] = []  # the draft's: its right tokens cost one pass, a wrong one changes none
    replays: bool = False
    mask_wait_ms: float = 0.0  # for late masks, which then end the draft; 0: the engine's limit
    ahead: int = 0  # outcomes of its verification that may be drafted after meanwhile


class Verify(Question, frozen=True, kw_only=True, tag="verify"):
    """Verify `draft` after the committed tokens; then go on alone for `run_on` plain steps.

    `tokens` are the committed tokens from `base_len` on, never empty: the logits of the last one,
    the anchor, verify `draft[0]`. One `Verdict` of part 0 is the answer, then one for each plain
    step. The steps end at `run_on`, eos, the context's end, or the session's next message.

    An engine with heads may draft for those steps itself if `own_drafts` allows it. A step then
    brings several tokens.
    """

    draft: list[int]
    run_on: int
    draft_probs: DraftProbs | None = None  # if the rule needs them; None: each came for certain
    own_drafts: bool = False
    own_length: int = 0  # tokens of each of these, where they fit; 0: as many as pay
    inspects: bool = False  # verdicts are to have an `inspection`
    away_ms: float = 0.0  # from when its sender had the last answer until this; 0.0: it had none


class Close(OfSession, frozen=True, kw_only=True, tag="close"):
    """Forget a session and free its blocks. Idempotent. No answer."""


# --- engine -> router -------------------------------------------------------------------------


class Proposal(Reply, frozen=True, kw_only=True, tag="proposal"):
    """Drafted tokens: `num_draft_tokens` of them, or fewer, for the reason `cut`.

    `context`: the text is as long as the draft model can ever read. `starved`: other sessions hold
    the KV blocks it needs, which will pass.
    """

    tokens: list[int]
    timing: Timing
    step_ms: float  # cost of one draft step now
    draft_probs: DraftProbs | None = None  # if the rule needs them
    cut: Cut = ""
    num_ahead: int = 0  # first tokens of it that were drafted before they were asked for


class Verdict(Reply, frozen=True, kw_only=True, tag="verdict"):
    """`num_accepted` draft tokens are accepted and `token` follows them: accepted + 1 commit.

    If the session's terms ask for logprobs, `logprobs` has one entry for each of these tokens. If
    they ask for the prompt's, the verdict with the first generated token has `prompt_logprobs`. It
    has one packed entry (`packed_logprobs.py`) for each prompt token but the first, which nothing
    predicts.

    `own` are the accepted tokens of a draft that the engine made itself (`Verify.own_drafts`). They
    commit before `token`. `num_own_drafted` counts tokens of all paths, if it was a tree.
    """

    part: int  # 0 answers the draft; 1, 2, ... are plain steps of run_on
    num_accepted: int
    token: int
    is_last: bool  # no further part follows for this seq
    timing: Timing
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[bytes] = []
    num_cached_tokens: int = 0  # found in the prefix cache since the session's last verdict
    own: list[int] = []
    num_own_drafted: int = 0
    inspection: Inspection | None = None  # if the question wanted one


class Queued(Reply, frozen=True, kw_only=True, tag="queued"):
    """No answer yet, but the message is worked on or waits its turn: go on waiting.

    Sent at intervals; it may be lost, and may arrive late, after the answer. `num_rows_done` rises
    with every pass that has a part of the message: rows computed so far, lost ones included.
    """

    num_rows_done: int = 0


class NeedPrefix(Reply, frozen=True, kw_only=True, tag="need_prefix"):
    """The prefix named is not there; the engine's cache holds `have_len` tokens of `have_hash`."""

    have_len: int
    have_hash: int


class NeedOpen(Reply, frozen=True, kw_only=True, tag="need_open"):
    """The session is unknown here, or all of its engine: `epoch` is the life that answers."""

    epoch: int


class Failed(Reply, frozen=True, kw_only=True, tag="failed"):
    """The message cannot be acted on. The session stays open; a higher seq may follow."""

    code: Literal["context_too_long", "mask_unavailable", "invalid", "internal"]
    message: str


# --- router -> constraint service ---------------------------------------------------------------


class GrammarOpen(OfSession, frozen=True, kw_only=True, tag="grammar_open"):
    """Compile `grammar` (or take it from the cache) and start a matcher. Idempotent."""

    grammar: Grammar
    peers: list[str] = []  # CURVE keys of the engines that may ask for masks; repeats add to them
    max_forced: int = 0  # most forced tokens that an answer to the router brings


class GrammarCommit(Question, frozen=True, kw_only=True, tag="grammar_commit"):
    """Validate generated tokens and make them part of the matcher's committed prefix.

    Lengths count generated tokens only: the prompt is outside the grammar. Repeats are harmless.
    """


class GrammarClose(OfSession, frozen=True, kw_only=True, tag="grammar_close"):
    """Forget a matcher. Idempotent. No answer."""


# --- constraint service -> router -----------------------------------------------------------------


class GrammarReady(msgspec.Struct, frozen=True, kw_only=True, tag="grammar_ready"):
    """The matcher is open at `committed_len` generated tokens."""

    session_id: str
    compile_ms: float
    committed_len: int
    forced: Forced = NOTHING_FORCED  # after the committed tokens
    loosened: tuple[Loosened, ...] = ()  # parts of the grammar that are not enforced


class GrammarRefused(msgspec.Struct, frozen=True, kw_only=True, tag="grammar_refused"):
    """The grammar cannot be served. `is_client_error` False: try another replica."""

    session_id: str
    message: str
    is_client_error: bool


class GrammarCommitted(Reply, frozen=True, kw_only=True, tag="grammar_committed"):
    """The first `num_valid` of the tokens obey the grammar and are committed."""

    num_valid: int
    is_complete: bool  # the text so far is a whole sentence of the grammar
    message: str = ""  # why the token at num_valid is refused
    forced: Forced = NOTHING_FORCED  # after the tokens that are valid, where nothing follows them


class GrammarStale(Reply, frozen=True, kw_only=True, tag="grammar_stale"):
    """Nothing was committed: the prefix a commit names is not there.

    The matcher holds `committed_len` tokens of `committed_hash`: commit again from there (0 and
    `EMPTY_HASH` fit every sender). `is_unknown`: open session or epoch again, then commit all.
    """

    committed_len: int = 0
    committed_hash: int = 0
    is_unknown: bool = False


# --- engine <-> constraint service --------------------------------------------------------------


class MaskRequest(OfSession, frozen=True, kw_only=True, tag="mask_request"):
    """Masks for the states after `chain[:len(chain) - num_rows + 1 + i]`, i = 0..num_rows-1.

    The chain is walked on a copy of the matcher, from its committed state at `base_len` generated
    tokens. It has first the tokens that were committed since, then draft tokens.
    """

    ticket: int  # chosen by the asker, returned unchanged
    base_len: int
    prefix_hash: int
    chain: list[int]
    num_rows: int  # <= len(chain) + 1


class Masks(msgspec.Struct, frozen=True, kw_only=True, tag="masks"):
    """`num_valid_rows` bitmask rows of `row_bytes` each; bit t of a row: token t is allowed.

    Rows of little-endian 32-bit words; those after an illegal chain token are missing.
    """

    session_id: str
    ticket: int
    committed_len: int  # the matcher's committed length now: a good next base_len
    committed_hash: int
    num_valid_rows: int
    row_bytes: int
    rows: bytes


class MaskMiss(msgspec.Struct, frozen=True, kw_only=True, tag="mask_miss"):
    """No masks for this ticket.

    `stale`: ask again from `committed_len`; `unknown`: session or epoch unknown; `failed`: the
    matcher broke or its child process was ended.
    """

    session_id: str
    ticket: int
    reason: Literal["stale", "unknown", "failed"]
    committed_len: int = 0
    committed_hash: int = 0
    message: str = ""


EngineQuestion = Propose | Verify | Choose  # the messages that have an answer
EngineRequest = Open | EngineQuestion | Close
EngineReply = Proposal | Verdict | Chosen | Queued | NeedPrefix | NeedOpen | Failed
_GrammarRequest = GrammarOpen | GrammarCommit | GrammarClose | GrammarCheck
ConstraintRequest = _GrammarRequest | MaskRequest | RewardScore
_GrammarReply = GrammarReady | GrammarRefused | GrammarCommitted | GrammarStale | GrammarChecked
ConstraintReply = _GrammarReply | Masks | MaskMiss | RewardScored | RewardRefused
