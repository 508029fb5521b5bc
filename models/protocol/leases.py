"""The address of a process, and the right to keep a session there. Needs msgspec only."""

from __future__ import annotations

import msgspec


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The address that a link server listens on. `public_key` is its CURVE key (Z85)."""

    address: str  # "tcp://10.0.0.7:41234"
    public_key: str
    epoch: int


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a replica to admit one session from the router that owns `public_key` (CURVE, Z85).

    The choice of the replica reads `prefix_key`: texts that begin alike have the same; "" is none.
    """

    session_id: str
    public_key: str
    prefix_key: str = ""


class LeaseRefused(msgspec.Struct, frozen=True, kw_only=True):
    """Says in place of a grant that the replica takes no session now, and why; ask another.

    After a grant it says that the model is lost.
    """

    replica: str
    reason: str


class LeaseGrant(msgspec.Struct, frozen=True, kw_only=True):
    """First item of a lease: where the replica's link listens and what it serves.

    `asker_key` is the CURVE key with which this engine asks constraint services for masks; the
    router introduces it there (`GrammarOpen.peers`). Empty for a constraint replica.
    """

    endpoint: Endpoint
    asker_key: str = ""
    max_model_len: int = 0  # tokens; 0 for a constraint replica
    batch_invariant: bool = False
    kv_cache_tokens: int = 0  # most tokens that one session can have room for; 0: unknown
    vocabulary: str = ""  # `Vocabulary.digest` of an engine of a service; "": not to be compared
    replica: str = ""  # its name where replicas are many: in metrics, logs and the choice of one
