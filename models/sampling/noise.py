"""Counter-based Gumbel noise g(seed, position, token): what makes sampled text reproducible.

Sampling is `argmax(score + g)`. The noise of a row is a function of two numbers. They are the
session's seed and the absolute index of the sampled token in the session (prompt included). So
draft, target and plain decoding sample with the same noise for any cut or batching of rounds.

Each (seed, position, domain) names one SplitMix64 stream (Steele, Lea, Flood 2014; it passes
BigCrush). Token t takes the stream's output t + 1, whose upper 52 bits are the uniform. Domains
keep the samples of one position independent of each other: the `rejection` rule needs four. All of
that is 64-bit integer arithmetic and exact on every device. Only the two logarithms are float32.
Taken of the small end of the uniform (log1p), they keep seven digits out to the largest possible
value, 36.7. -log(-log(u)) of a float32 u would be cut off near 17. So the noise on two devices may
differ in its last bit. That matters only for exact near ties of two tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from models.device import array_to_device

DOMAIN_TOKEN = 0  # the target's sample of a token; under `coupled` the draft's as well
DOMAIN_DRAFT = 1  # `rejection`: the sample of a draft token
DOMAIN_TEST = 2  # `rejection`: whether the draft token is accepted
DOMAIN_RESIDUAL = 3  # `rejection`: the recovered token
DOMAIN_CHOICE = 4  # one of a list of texts, by its place in the list

_MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's increment
MIX1 = 0xBF58476D1CE4E5B9
MIX2 = 0x94D049BB133111EB
_POSITION_STEP = 0xD1342543DE82EF95  # odd; keeps position apart from the token's increment
_ONE, _STEP = np.uint64(1), np.uint64(_POSITION_STEP)
_MIXES, _SHIFTS = np.array([MIX1, MIX2], dtype=np.uint64), np.array([30, 27, 31], dtype=np.uint64)
_FEW_ROWS = 12  # Python computes the keys of fewer rows sooner than numpy
UNIFORM_BITS = 52
LARGEST_BELOW_ONE = 1.0 - 2.0**-24  # float32


def gumbel_noise(
    seeds: Sequence[int],  # [R], 64-bit unsigned
    positions: Sequence[int],  # [R], absolute index of the token that is sampled
    vocab_size: int,
    device: torch.device | str = "cpu",
    domain: int = DOMAIN_TOKEN,
) -> Tensor:
    """Standard Gumbel noise, float32 [R, vocab_size]; row r depends on its seed and position only.

    Safe to repeat: equal arguments give equal values.
    """
    keys = _row_keys(seeds, positions, domain, device)
    return _gumbel_(keys + _token_offsets(vocab_size, torch.device(device)))


def gumbel_noise_at(
    seeds: Sequence[int],  # [R], 64-bit unsigned
    positions: Sequence[int],  # [R]
    token_ids: Tensor,  # [R, m] int64
    domain: int = DOMAIN_TOKEN,
) -> Tensor:
    """Return the values of `gumbel_noise` at some tokens of each row only: float32 [R, m]."""
    keys = _row_keys(seeds, positions, domain, token_ids.device)
    return _gumbel_(keys + (token_ids + 1) * signed(GOLDEN))


def uniform(seed: int, position: int, domain: int) -> float:
    """Return one number of the open interval (0, 1), exact on every machine."""
    bits = _mix_int(_row_key(seed, position, domain) + GOLDEN) >> (64 - UNIFORM_BITS)
    return (bits + 0.5) * 2.0**-UNIFORM_BITS


def stream_keys(
    seeds: Sequence[int],  # [R], 64-bit unsigned
    positions: Sequence[int],  # [R]
    domain: int = DOMAIN_TOKEN,
) -> np.ndarray:  # [R] int64
    """Return the keys of the rows' streams: token t has the noise of output t + 1."""
    if len(seeds) < _FEW_ROWS:
        rows = zip(seeds, positions, strict=True)
        return np.array([signed(_row_key(*row, domain)) for row in rows], dtype=np.int64)
    bases = [_seed_key(seed, domain) for seed in seeds]
    steps = (np.array(positions, dtype=np.uint64) + _ONE) * _STEP
    keys = np.array(bases, dtype=np.uint64) + steps
    keys = (keys ^ (keys >> _SHIFTS[0])) * _MIXES[0]
    keys = (keys ^ (keys >> _SHIFTS[1])) * _MIXES[1]
    return (keys ^ (keys >> _SHIFTS[2])).view(np.int64)


def _gumbel_(state: Tensor) -> Tensor:
    """Noise of unmixed stream states, int64 [R, n], which are overwritten."""
    _mix_(state)
    bits = _shift_right(state, 64 - UNIFORM_BITS)
    # (bits + 1/2) / 2^52: uniform in (0, 1], its small end exact to seven digits.
    tail = bits.to(torch.float32).add_(0.5).mul_(2.0**-UNIFORM_BITS)
    tail.clamp_(max=LARGEST_BELOW_ONE)
    return tail.neg_().log1p_().neg_().log_().neg_()


def _row_keys(
    seeds: Sequence[int], positions: Sequence[int], domain: int, device: torch.device | str
) -> Tensor:
    """Return the stream of each row, int64 [R, 1]."""
    return array_to_device(stream_keys(seeds, positions, domain), device)[:, None]


def _row_key(seed: int, position: int, domain: int) -> int:
    return _mix_int(_seed_key(seed, domain) + (position + 1) * _POSITION_STEP)


@lru_cache(maxsize=4096)
def _seed_key(seed: int, domain: int) -> int:
    return _mix_int((_mix_int((domain + 1) * GOLDEN) ^ (seed & _MASK64)) + GOLDEN)


def _mix_int(value: int) -> int:
    """SplitMix64's output function on Python ints."""
    value &= _MASK64
    value = ((value ^ (value >> 30)) * MIX1) & _MASK64
    value = ((value ^ (value >> 27)) * MIX2) & _MASK64
    return value ^ (value >> 31)


def _mix_(state: Tensor) -> None:
    """Mix in place, on int64 [R, V]; products wrap around, as in two's complement."""
    state.bitwise_xor_(_shift_right(state, 30)).mul_(signed(MIX1))
    state.bitwise_xor_(_shift_right(state, 27)).mul_(signed(MIX2))
    state.bitwise_xor_(_shift_right(state, 31))


def _shift_right(state: Tensor, count: int) -> Tensor:
    """Logical shift: torch shifts int64 arithmetically, so the copied sign bits are cut off."""
    return (state >> count).bitwise_and_((1 << (64 - count)) - 1)


def signed(value: int) -> int:
    """Return the int64 with the bit pattern of a value modulo 2^64."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


@lru_cache(maxsize=8)
def _token_offsets(vocab_size: int, device: torch.device) -> Tensor:
    """(t + 1) * golden modulo 2^64, int64 [vocab_size]; the same for all rows."""
    steps = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device)
    return steps * signed(GOLDEN)
