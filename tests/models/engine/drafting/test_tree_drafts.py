"""Side paths of drafts are accepted, and leave what a plain pass over the text would."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from models.engine.drafting import side_paths
from models.engine.drafting.side_paths import SidePaths
from models.engine.runner import ModelRunner, SequenceRows
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.kv.block_pool import BlockTable
from models.protocol.messages import Sampling
from models.sampling.draft_tree import DraftTree
from models.scheduler.sessions import Job, Session
from tests.cases.models.mtp import PlainMtp, mtp_weights, write_mtp
from tests.cases.wrong_trees import take_any_leaf
from tests.fakes.engines import (
    EPOCH,
    Client,
    Link,
    make_runner,
    random_prompt,
    run_clients,
    tiny_checkpoint,
)
from tests.harness.kv_memory import own_storage
from tests.models.engine.drafting import test_own_drafts
from tests.models.engine.drafting.test_own_drafts import KINDS, draft_always, runner

pytestmark = pytest.mark.matrix

SAMPLED = Sampling(temperature=0.8, seed=5)
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "sampled": SAMPLED,
    "truncated": Sampling(temperature=0.8, top_p=0.8, seed=6),
    "penalised": Sampling(
        temperature=0.8, seed=7, presence_penalty=0.5, frequency_penalty=0.3, repetition_penalty=1.2
    ),
    "bad words": Sampling(
        seed=8, min_tokens=60, bad_words=tuple((a, a + 1) for a in range(0, 250, 2))
    ),
}
DRAFTERS = {
    "medusa": "models.engine.drafting.heads.HeadsDrafter",
    "mtp": "models.engine.drafting.mtp.MtpDrafter",
    "early exit": "models.engine.drafting.early_exit.ExitDrafter",
}
NUM_TOKENS = 60


class Oracle:
    """Drafters that have the target's token among their candidates, at a rank by its position."""

    def __init__(self) -> None:
        self.texts: dict[str, list[int]] = {}  # by session: prompt and text
        self.num_side_tokens = 0  # accepted
        self.most_side_tokens = 0  # at once

    def ranked(self, session: Session, ranked: list[list[int]]) -> list[list[int]]:
        whole, length = self.texts.get(session.session_id, []), len(session.tokens)
        found = []
        for place, ids in enumerate(ranked):
            position = length + place
            if position < len(whole):
                others = [token for token in ids if token != whole[position]][: len(ids) - 1]
                rank = (position * 7 // 3) % 3
                ids = [*others[:rank], whole[position], *others[rank:]]
            found.append(ids)
        return found

    def note(self, rows: Sequence[int]) -> None:
        num_side = sum(row != place for place, row in enumerate(rows))
        self.num_side_tokens += num_side
        self.most_side_tokens = max(self.most_side_tokens, num_side)


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    """Trees in every pass, with the token that is right in them."""
    made = Oracle()
    draft_always(monkeypatch, trees=True)
    for name in DRAFTERS.values():
        monkeypatch.setattr(f"{name}.rank", _knowing(made, pkgutil.resolve_name(name).rank))
    take = SidePaths.take

    def noted(self: SidePaths, session: Session, job: Job, rows: Sequence[int]) -> None:
        made.note(rows)
        take(self, session, job, rows)

    monkeypatch.setattr(SidePaths, "take", noted)
    return made


def _knowing(oracle: Oracle, rank: Callable[..., Any]) -> Callable[..., Any]:
    def ranked(self, sessions, samplings, num_tokens, num_ranks):
        found = rank(self, sessions, samplings, num_tokens, num_ranks)
        return [oracle.ranked(*pair) for pair in zip(sessions, found, strict=True)]

    return ranked


clients_of = partial(test_own_drafts.clients_of, num_tokens=NUM_TOKENS, run_on=40)


def plain_texts(made: ModelRunner, sampling: Sampling, num_sessions: int = 3) -> list[list[int]]:
    target = Link(TargetEngine(made, NoMaskSource(), EPOCH))
    return run_clients(clients_of(target, sampling, own_drafts=False, num_sessions=num_sessions))


def remember(oracle: Oracle, plain: Sequence[list[int]]) -> None:
    for i, text in enumerate(plain):
        oracle.texts[f"s{i}"] = random_prompt(i, 5 + 11 * i) + text


def tree_texts(
    oracle: Oracle, made: ModelRunner, sampling: Sampling, plain: Sequence[list[int]]
) -> list[list[int]]:
    remember(oracle, plain)
    engine = TargetEngine(made, NoMaskSource(), EPOCH)
    clients = clients_of(Link(engine), sampling, own_drafts=True, num_sessions=len(plain))
    return run_clients(clients)


@pytest.mark.parametrize("attention", ["auto", "reference"])
@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_side_paths_are_accepted_and_the_text_is_the_same(
    kind: str, name: str, attention: str, oracle: Oracle
) -> None:
    plain = plain_texts(make_runner(attention=attention), SAMPLINGS[name])
    assert tree_texts(oracle, runner(kind, attention=attention), SAMPLINGS[name], plain) == plain
    assert oracle.num_side_tokens > NUM_TOKENS // 2
    assert oracle.most_side_tokens > (1 if kind == "medusa" else 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_and_so_are_logprobs(kind: str, dtype: Any, oracle: Oracle) -> None:
    """Bit for bit: of each token, of the likeliest ones and of the whole vocabulary."""
    sampling = msgspec.structs.replace(SAMPLED, num_logprobs=256)
    plain = plain_texts(make_runner(dtype=dtype), sampling)
    found = []
    remember(oracle, plain)
    for made, own_drafts in ((make_runner(dtype=dtype), False), (runner(kind, dtype=dtype), True)):
        link = Link(TargetEngine(made, NoMaskSource(), EPOCH))
        clients = clients_of(link, sampling, own_drafts=own_drafts)
        run_clients(clients)
        entries = [[one for v in client.verdicts for one in v.logprobs] for client in clients]
        found.append([each[:NUM_TOKENS] for each in entries])
    assert oracle.num_side_tokens > NUM_TOKENS // 2
    assert [len(entries) for entries in found[0]] == [NUM_TOKENS] * 3
    assert found[0] == found[1]


@pytest.mark.parametrize("attention", ["auto", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_cache_holds_what_a_plain_pass_writes(
    kind: str, attention: str, oracle: Oracle
) -> None:
    plain = plain_texts(make_runner(attention=attention), SAMPLED)
    made = runner(kind, attention=attention)
    seen: list[tuple[list[int], list[torch.Tensor]]] = []
    take = SidePaths.take

    def look(self: SidePaths, session: Session, job: Job, rows: Sequence[int]) -> None:
        take(self, session, job, rows)
        num_done = session.num_computed_tokens
        if rows[-1] != len(rows) - 1:  # a side path
            keys = stored(made, session.table, num_done)
            seen.append((session.tokens.ids[:num_done], keys))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SidePaths, "take", look)
        assert tree_texts(oracle, made, SAMPLED, plain) == plain
    assert len(seen) > 10
    fresh = made.pool.new_table()
    for ids, keys in seen:
        fresh.resize(len(ids))
        for start in range(0, len(ids), 64):
            made.forward([SequenceRows(fresh, start, ids[start : start + 64], 0)])
        for one, other in zip(keys, stored(made, fresh, len(ids)), strict=True):
            assert torch.equal(one, other), f"after {len(ids)} tokens"
        fresh.free()


def stored(made: ModelRunner, table: BlockTable, num_tokens: int) -> list[torch.Tensor]:
    """Keys and values of the model's layers by position, however the back-end lays them out."""
    storage, size = own_storage(made), made.pool.block_size
    found = []
    for layer in storage.blocks[:2]:
        for part, is_key in zip(layer, (True, False), strict=True):
            by_block = part[table.block_ids[: -(-num_tokens // size)]]
            if made.backend.name == "compiled" and is_key:
                by_block = by_block.transpose(2, 3)  # [blocks, K, B, D]
            found.append(by_block.transpose(1, 2).flatten(0, 1)[:num_tokens].clone())
    return found


@pytest.mark.parametrize("attention", ["auto", "reference"])
def test_keys_of_the_head_go_along(
    attention: str, oracle: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind accepted side paths an MTP head drafts what it does over the whole text."""
    plain = plain_texts(make_runner(attention=attention), SAMPLINGS["greedy"])
    target = tiny_checkpoint(noise=0.0)
    folder = write_mtp(tmp_path, mtp_weights(target, seed=4))
    drafts: list[tuple[list[int], list[int]]] = []
    choose = oracle.ranked

    def noted(session: Session, ranked: list[list[int]]) -> list[list[int]]:
        drafts.append((list(session.tokens.ids), [ids[0] for ids in ranked]))
        return choose(session, ranked)

    monkeypatch.setattr(oracle, "ranked", noted)
    made = make_runner(heads=str(folder), attention=attention)
    assert tree_texts(oracle, made, SAMPLINGS["greedy"], plain) == plain
    assert oracle.num_side_tokens > NUM_TOKENS // 2
    assert {len(text) % 16 for text, _ in drafts} >= {0, 1, 14, 15}, "where blocks end, too"
    head = PlainMtp(target, folder)
    for text, draft in drafts:
        assert draft == head.draft(text, len(draft)), f"behind {len(text)} tokens"


@pytest.mark.parametrize("num_tokens", [256, 304, 352])
@pytest.mark.parametrize("kind", KINDS)
def test_small_caches_take_trees_and_preempt(kind: str, num_tokens: int, oracle: Oracle) -> None:
    """Blocks for side paths are those that nobody needs just then."""
    plain = plain_texts(make_runner(), SAMPLED, 5)
    remember(oracle, plain)
    made = runner(kind, kv_cache_tokens=num_tokens, max_model_len=128)
    engine = TargetEngine(made, NoMaskSource(), EPOCH)
    link = Link(engine)
    clients = clients_of(link, SAMPLED, own_drafts=True, num_sessions=5)
    assert run_clients(clients) == plain
    assert oracle.num_side_tokens > 0
    assert engine.load().num_preemptions > 0
    assert engine.num_used_blocks == 0


@pytest.mark.parametrize("kind", KINDS)
def test_where_a_pass_has_no_rows_left_drafts_are_chains(kind: str, oracle: Oracle) -> None:
    """Three sessions with 4 rows each, and 4 or 5 more for side paths, of 20 rows a pass."""
    plain = plain_texts(make_runner(), SAMPLED)
    assert tree_texts(oracle, runner(kind, max_num_batched_tokens=20), SAMPLED, plain) == plain
    few = oracle.num_side_tokens
    oracle.num_side_tokens = 0
    assert tree_texts(oracle, runner(kind), SAMPLED, plain) == plain
    assert 0 < few < oracle.num_side_tokens


@pytest.mark.parametrize("kind", KINDS)
def test_what_side_paths_leave_is_found_in_the_prefix_cache(kind: str, oracle: Oracle) -> None:
    plain = plain_texts(make_runner(), SAMPLED)
    made = runner(kind)
    remember(oracle, plain)
    engine = TargetEngine(made, NoMaskSource(), EPOCH)
    assert run_clients(clients_of(Link(engine), SAMPLED, own_drafts=True)) == plain
    assert oracle.num_side_tokens > NUM_TOKENS // 2
    assert engine.load().prefix_hits == 0
    # The same texts as prompts of others, greedily: by the cache here, anew there.
    prompts = [random_prompt(i, 5 + 11 * i) + text for i, text in enumerate(plain)]
    texts = []
    for target in (engine, TargetEngine(make_runner(), NoMaskSource(), EPOCH)):
        link, greedy = Link(target), SAMPLINGS["greedy"]
        clients = [Client(f"p{i}", prompt, greedy, 20, link) for i, prompt in enumerate(prompts)]
        texts.append(run_clients(clients))
    assert texts[0] == texts[1]
    assert engine.load().prefix_hits > 100


@pytest.mark.parametrize("kind", KINDS)
def test_where_side_paths_cannot_be_computed_drafts_are_chains(
    kind: str, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on pages of a GPU."""
    plain = plain_texts(make_runner(), SAMPLED)
    made = runner(kind)
    monkeypatch.setattr(type(made.backend), "stores_shared_rows", False)
    remember(oracle, plain)
    clients = clients_of(Link(TargetEngine(made, NoMaskSource(), EPOCH)), SAMPLED, own_drafts=True)
    assert run_clients(clients) == plain
    assert oracle.num_side_tokens == 0
    assert any(verdict.own for client in clients for verdict in client.verdicts)


def with_keys_of_the_first_path(patch: pytest.MonkeyPatch) -> None:
    adopt = BlockTable.adopt
    patch.setattr(
        BlockTable, "adopt", lambda self, first, ids: adopt(self, len(self.block_ids), [])
    )


def with_noise_of_another_position(patch: pytest.MonkeyPatch) -> None:
    path = DraftTree.path_tokens
    patch.setattr(DraftTree, "path_tokens", lambda tree, row: path(tree, row)[:-1])


@pytest.mark.parametrize(
    "mistake", [with_keys_of_the_first_path, with_noise_of_another_position, take_any_leaf]
)
def test_a_mistake_is_seen(
    mistake: Callable[[pytest.MonkeyPatch], None], oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = plain_texts(make_runner(), SAMPLED)
    mistake(monkeypatch)
    made = runner("medusa", enable_prefix_caching=False)
    assert tree_texts(oracle, made, SAMPLED, plain) != plain


def test_a_side_path_that_does_not_see_its_own_rows_is_seen(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deliberate mistake: rows of the pass that a side path shares are not stored for it."""
    plain = plain_texts(make_runner(), SAMPLED)

    def without(**fields: Any) -> SequenceRows:
        return SequenceRows(**(fields | {"shared_rows": ()}))

    monkeypatch.setattr(side_paths, "SequenceRows", without)
    assert tree_texts(oracle, runner("medusa"), SAMPLED, plain) != plain
