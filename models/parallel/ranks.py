"""The ranks that share one model, and what they say to each other: passes, sums, columns.

Each rank is a process with one device. Rank 0 is the leader: it announces every pass and every step
of drafting (`message`). All ranks compute it together, and only the leader gets the logits. Tensors
go over NCCL on CUDA and over gloo on a CPU. Announcements always go over gloo, whose waits need no
device. An announcement comes at least every `KEEP_ALIVE_S` seconds. So a follower's wait has a
limit although an idle leader has nothing to compute.

Sums on a CPU are taken in rank order, in float32, rounded once. A row's sum then depends neither on
the other rows of the pass nor on timing. (gloo's own all-reduce cuts the buffer into pieces by its
size. It adds each piece in another order.) NCCL's sums are not ordered here.

A rank that dies breaks its connections: whatever the others wait for raises RuntimeError.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from models.parallel.message import Idle, PassMessage, Stop, Work, decode, encode

KEEP_ALIVE_S = 1.0
_FRAME_BYTES = 4096  # a pass of about 50 sessions with 5 rows and 20 blocks each
_LENGTH_BYTES = 4  # of the message in it, before it


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWaits:
    """The longest waits for another rank, in seconds; after them it counts as gone."""

    load_s: float  # while it is still loading
    step_s: float  # within a pass
    idle_s: float  # for the leader to say anything


class TensorParallel:
    """This process's place among the ranks of one model. One per process: it sets up torch's group.

    Args:
        rank: of this process; 0 leads.
        world_size: number of ranks, at least 2.
        init_method: where ranks meet, as torch.distributed spells it: "tcp://host:port" or
            "file:///path" (one machine, a file that is not there yet).
        device: of the tensors: "cpu" or "cuda"; a rank's GPU is its first visible one.
        waits: for other ranks.

    Attributes:
        sums_in_order: whether parts are added in the order of ranks, so that the bits of a sum do
            not depend on its place in a buffer; on CPUs from the start.

    Raises:
        ValueError: no such rank, or a device that ranks cannot share a model on.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        init_method: str,
        *,
        device: str,
        waits: RankWaits,
    ) -> None:
        if world_size < 2 or not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}: there are ranks 0 to world_size - 1")
        kind = torch.device(device).type
        if kind not in ("cpu", "cuda"):
            raise ValueError(
                f"tensor_parallel_size {world_size} needs device cpu or cuda: {device}"
            )
        self.rank = rank
        self.world_size = world_size
        self.sums_in_order = kind == "cpu"
        # transformers binds a rank to this device; each process sees its own GPU only, as number 0.
        os.environ["LOCAL_RANK"] = "0"
        dist.init_process_group(
            "gloo" if kind == "cpu" else "cpu:gloo,cuda:nccl",
            init_method=init_method,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=waits.load_s),
            # A rank sees its own GPU only. NCCL connects now, not in the middle of a first pass.
            device_id=torch.device("cuda", 0) if kind == "cuda" else None,
        )
        backend = "gloo" if kind == "cpu" else "nccl"
        self._tensors = dist.new_group(backend=backend, timeout=timedelta(seconds=waits.step_s))
        self._control = dist.new_group(backend="gloo", timeout=timedelta(seconds=waits.idle_s))
        self._loading = dist.new_group(backend="gloo", timeout=timedelta(seconds=waits.load_s))
        self._announced_s = 0.0
        self._is_open = True

    @property
    def is_leader(self) -> bool:
        """True if this rank announces passes and gets logits."""
        return self.rank == 0

    def wait_loaded(self) -> None:
        """Return when every rank has come here."""
        dist.barrier(self._loading)

    def least(self, number: int) -> int:
        """Return the least of the ranks' numbers.

        All ranks must call it, while loading.
        """
        numbers = torch.tensor([number], dtype=torch.int64)
        dist.all_reduce(numbers, dist.ReduceOp.MIN, group=self._loading)
        return int(numbers[0])

    def all_say(self, is_so: bool) -> bool:
        """Return whether every rank says so. All ranks must call it, while loading."""
        return bool(self.least(int(is_so)))

    def must_agree(self, key: str, number: int) -> None:
        """Return if all ranks come here with the same number; while loading.

        Raises:
            ValueError: they do not.
        """
        least, most = self.least(number), -self.least(-number)
        if least != most:
            raise ValueError(f"{key}: ranks came to {least} and {most}; give it in the config")

    def close(self) -> None:
        """Leave the group without waiting for anyone; the leader announces it. Idempotent."""
        if self._is_open:
            self._is_open = False
            if self.is_leader:
                self._send(Stop())
            dist.destroy_process_group()

    # --- announcements: the leader sends, followers receive, in the same order

    def announce(self, work: Work) -> None:
        """Tell the followers what all ranks do next. Leader only."""
        self._send(work)

    def keep_alive(self) -> None:
        """Tell the followers that the leader lives, if they heard nothing lately. Leader only."""
        if self._is_open and time.monotonic() - self._announced_s >= KEEP_ALIVE_S:
            self._send(Idle())

    def next_work(self) -> Work | None:
        """Return the next work; None if the leader has stopped. Followers only.

        Raises:
            RuntimeError: the leader is gone or was silent for too long.
        """
        while True:
            message = self._receive()
            if isinstance(message, Stop):
                return None
            if not isinstance(message, Idle):
                return message

    def _send(self, message: PassMessage) -> None:
        content = encode(message)
        content = len(content).to_bytes(_LENGTH_BYTES, "little") + content
        frame, rest = content[:_FRAME_BYTES].ljust(_FRAME_BYTES, b"\0"), content[_FRAME_BYTES:]
        self._broadcast(bytearray(frame))
        if rest:
            self._broadcast(bytearray(rest))
        self._announced_s = time.monotonic()

    def _receive(self) -> PassMessage:
        content = self._broadcast(bytearray(_FRAME_BYTES))
        end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
        if end > _FRAME_BYTES:
            content += self._broadcast(bytearray(end - _FRAME_BYTES))
        return decode(content[_LENGTH_BYTES:end])

    def _broadcast(self, content: bytearray) -> bytes:
        """Give the followers these bytes, or return as many of the leader's."""
        dist.broadcast(torch.frombuffer(content, dtype=torch.uint8), 0, group=self._control)
        return bytes(content)

    # --- tensors: every rank calls the same, with the same shapes

    def sum(self, part: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the sum of `part` over ranks, plus `bias`, in its type, on every rank."""
        if not self.sums_in_order:
            dist.all_reduce(part, group=self._tensors)
            return part if bias is None else part + bias
        first, *others = self._gather_all(part)
        total = first.float()
        for other in others:
            total = total.add_(other)  # may be `first` itself, which nobody else has
        if bias is not None:
            total = total.add_(bias)
        return total.to(part.dtype)

    def hand_out(self, tensor: Tensor) -> Tensor:
        """Give the followers a tensor, which they take by `handed_out`. Leader only."""
        tensor = tensor.contiguous()
        dist.broadcast(tensor, 0, group=self._tensors)
        return tensor

    def handed_out(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return the tensor that the leader hands out, of this shape and the type of `like`.

        Followers only.
        """
        tensor = like.new_empty(shape)
        dist.broadcast(tensor, 0, group=self._tensors)
        return tensor

    def gather_columns(self, columns: Tensor) -> Tensor:
        """[..., C] of each rank -> [..., C * world_size], in rank order, on every rank."""
        return torch.cat(self._gather_all(columns), dim=-1)

    def gather_to_leader(self, columns: Tensor) -> Tensor:
        """Like `gather_columns`, but followers get [..., 0]."""
        columns = columns.contiguous()
        if not self.is_leader:
            dist.gather(columns, dst=0, group=self._tensors)
            return columns[..., :0]
        parts = [torch.empty_like(columns) for _ in range(self.world_size)]
        dist.gather(columns, parts, dst=0, group=self._tensors)
        return torch.cat(parts, dim=-1)

    def _gather_all(self, part: Tensor) -> list[Tensor]:
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.world_size)]
        dist.all_gather(parts, part, group=self._tensors)
        return parts
