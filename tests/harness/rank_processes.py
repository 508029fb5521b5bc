"""The ranks of a tensor-parallel model as processes of their own, one torch thread each.

`start_ranks` runs a function on every rank; `shared_engine` runs a real engine on the leader and
lets the test drive it like one in its own process. Processes are forked from a server that has
torch and transformers loaded, because importing them takes longer than everything else.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from models.config import DtypeName, EngineConfig
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.kv.rows import SequenceRows
from models.parallel.ranks import RankWaits, TensorParallel
from models.protocol.messages import EngineReply, EngineRequest
from tests.fakes.engines import EPOCH, ScriptedMasks
from tests.harness.kv_memory import kv_bytes
from tests.harness.runs import engines

WAIT_S = 100.0
_PRELOADED = ["rank_processes", "transformers.models.llama.modeling_llama", "torch.distributed"]

RankMain = Callable[..., None]  # (ranks or None, pipe to the test, *args)


@dataclass
class RankProcess:
    """One rank, and the test's end of its pipe."""

    process: BaseProcess
    pipe: Connection

    def receive(self) -> Any:
        """What the rank sent next; its exception if that is what it sent."""
        if not self.pipe.poll(WAIT_S):
            raise TimeoutError(f"{self.process.name}: nothing within {WAIT_S:g} s")
        answer = self.pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the `Leader` in a rank that runs `serve_engine`."""
        self.pipe.send((method, arguments))
        return self.receive()


@contextlib.contextmanager
def start_ranks(
    world_size: int, main: RankMain, *args: Any, idle_timeout_s: float = WAIT_S
) -> Iterator[list[RankProcess]]:
    """Run `main` on every rank. They are killed at the end if they have not ended by then."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    folder = tempfile.mkdtemp(prefix="or-ranks-")
    ranks = []
    try:
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_run_rank,
                args=(rank, world_size, folder, idle_timeout_s, theirs, main, args),
                name=f"rank {rank} of {world_size}",
                daemon=True,
            )
            process.start()
            theirs.close()
            ranks.append(RankProcess(process, ours))
        yield ranks
    finally:
        for each in ranks:
            each.process.kill()
            each.process.join(WAIT_S)
            each.pipe.close()
        shutil.rmtree(folder, ignore_errors=True)


def _run_rank(
    rank: int,
    world_size: int,
    folder: str,
    idle_timeout_s: float,
    pipe: Connection,
    main: RankMain,
    args: tuple[Any, ...],
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        ranks = None
        if world_size > 1:
            ranks = TensorParallel(
                rank,
                world_size,
                f"file://{folder}/rendezvous",
                device="cpu",
                waits=RankWaits(load_s=WAIT_S, step_s=WAIT_S, idle_s=idle_timeout_s),
            )
        main(ranks, pipe, *args)
    except Exception as error:
        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
        raise


class Leader:
    """A runner, and an engine over it, driven by calls through a pipe."""

    def __init__(self, kind: str, runner: ModelRunner) -> None:
        make: Any = DraftEngine if kind == "draft" else TargetEngine
        self._runner = runner
        self._engine = make(runner, ScriptedMasks(), EPOCH)
        self._tables: dict[str, Any] = {}

    def sizes(self) -> dict[str, Any]:
        return {
            "batch_invariant": self._runner.batch_invariant,
            "weight_bytes": self._runner.weight_bytes,
            "kv_bytes": kv_bytes(self._runner),
            "layers": type(self._runner.layers).__name__,
        }

    def forward(self, rows: list[tuple[str, int, list[int], int]]) -> Any:
        """One pass over (session, start, token ids, num_logits); tables are kept by session."""
        batch = []
        for session, start, token_ids, num_logits in rows:
            table = self._tables.setdefault(session, self._runner.pool.new_table())
            table.resize(start + len(token_ids))
            batch.append(SequenceRows(table, start, token_ids, num_logits))
        return self._runner.forward(batch).numpy()

    def submit(self, message: EngineRequest) -> None:
        self._engine.submit(message, "reply-to")

    def has_work(self) -> bool:
        return self._engine.has_work

    def step(self) -> list[EngineReply]:
        return [reply for _, reply in self._engine.step()]

    def draft_logits(self, prompt: list[int]) -> list[Any]:
        """Of a head behind a prompt, and behind its own tokens without the first block's keys."""
        runner, end = self._runner, len(prompt)
        table = runner.pool.new_table()
        table.resize(end + 2)
        runner.forward([SequenceRows(table, 0, prompt, 1)])
        assert runner.hidden is not None
        rows = [SequenceRows(table, 1, prompt[1:], 1)]
        logits, states = runner.draft_pass(rows, runner.hidden[:-1])
        found = [logits.numpy()]
        runner.clear_draft_keys(table.block_ids[:1])
        for place in (end, end + 1):
            rows = [SequenceRows(table, place, [0], 1)]
            logits, states = runner.draft_pass(rows, states, logits.argmax(dim=-1))
            found.append(logits.numpy())
        table.free()
        return found

    def fix_drafts(self, num_tokens: int, num_tree_rows: int) -> None:
        self._engine.own_drafts.fix(num_tokens, num_tree_rows)

    def num_preemptions(self) -> int:
        return int(self._engine.load().num_preemptions)

    def check_blocks(self) -> None:
        self._runner.pool.check([*self._engine.block_tables(), *self._tables.values()])


def serve_engine(
    ranks: TensorParallel | None, pipe: Connection, kind: str, config: EngineConfig
) -> None:
    """Leader: answer calls until "stop". Follower: report sizes, then follow."""
    runner = ModelRunner(config, ranks)
    if ranks is not None and not ranks.is_leader:
        pipe.send({"weight_bytes": runner.weight_bytes, "kv_bytes": kv_bytes(runner)})
        runner.follow()
        runner.close()
        return
    leader = Leader(kind, runner)
    pipe.send(leader.sizes())
    while True:
        while not pipe.poll(0.2):
            runner.keep_alive()
        method, arguments = pipe.recv()
        if method == "stop":
            runner.close()
            return
        try:
            answer = getattr(leader, method)(*arguments)
        except Exception as error:  # noqa: BLE001 - it is the test's
            answer = RuntimeError(f"{type(error).__name__}: {error}")
        pipe.send(answer)


class SharedEngine:
    """An engine in another process, as `tests.fakes.engines.Link` drives one here."""

    def __init__(self, ranks: list[RankProcess]) -> None:
        self.ranks = ranks
        self.sizes = [rank.receive() for rank in ranks]

    def submit(self, message: EngineRequest, reply_to: object) -> None:
        self.ranks[0].call("submit", message)

    def step(self) -> list[tuple[object, EngineReply]]:
        return [("reply-to", reply) for reply in self.ranks[0].call("step")]

    @property
    def has_work(self) -> bool:
        return bool(self.ranks[0].call("has_work"))

    def check_blocks(self) -> None:
        self.ranks[0].call("check_blocks")

    def forward(self, *rows: tuple[str, int, list[int], int]) -> torch.Tensor:
        """Logits of a pass, see `Leader.forward`."""
        return torch.from_numpy(self.ranks[0].call("forward", list(rows)))

    def stop(self) -> list[int | None]:
        """Exit codes of the ranks after the leader was told to stop."""
        self.ranks[0].pipe.send(("stop", ()))
        for rank in self.ranks:
            rank.process.join(WAIT_S)
        return [rank.process.exitcode for rank in self.ranks]


@contextlib.contextmanager
def shared_engine(
    kind: str, world_size: int, path: Path | str, *, dtype: DtypeName = "float32", **limits: Any
) -> Iterator[SharedEngine]:
    """A draft or target engine whose model is shared by `world_size` processes."""
    idle_timeout_s = limits.pop("idle_timeout_s", WAIT_S)
    sizes = engines.settings() | {
        "max_model_len": 256,
        "kv_cache_tokens": 2048,
        "max_num_batched_tokens": 256,
        "num_threads": 1,
    }
    config = EngineConfig(
        model_path=str(path), dtype=dtype, tensor_parallel_size=world_size, **(sizes | limits)
    )
    with start_ranks(
        world_size, serve_engine, kind, config, idle_timeout_s=idle_timeout_s
    ) as ranks:
        yield SharedEngine(ranks)
