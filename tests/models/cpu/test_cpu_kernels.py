"""The kernels that go row by row give what torch's operations give, rounded where they round."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from models.cpu.kernels import compiling
from models.cpu.kernels.compiling import Call, compile_together, float_bits
from models.cpu.kernels.parameters import NUM_COMMON, NUM_ROWS, POSITIONS
from models.cpu.ops import (
    HeadNorms,
    LayerKeys,
    PassTable,
    Rotation,
    Store,
    StorePlan,
    buffer,
    norm,
    rotate_and_store,
)

DTYPES = [torch.float32, torch.bfloat16]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_threads = pytest.mark.parametrize("num_threads", [1, 2])
EPSILON = 1e-5


def random(*shape: int, seed: int = 0, size: float = 1.0) -> Tensor:
    return size * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_same(found: Tensor, expected: Tensor, atol: float = 2e-6) -> None:
    """Equal bits of bfloat16, but for one in a thousand that lies between two; float32 nearly."""
    if found.dtype == torch.bfloat16:
        torch.testing.assert_close(found, expected, rtol=2**-7, atol=atol)
        assert (found != expected).float().mean() <= 1e-3
    else:
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)


def normed(rows: Tensor, weight: Tensor) -> Tensor:
    return nn.functional.rms_norm(rows, rows.shape[-1:], None, EPSILON) * weight


def run_norm(rows: Tensor, weight: Tensor, num_threads: int) -> Tensor:
    table, out = PassTable(), torch.empty_like(rows)
    table.values[NUM_ROWS] = len(rows)
    table.put(buffer(0), rows)
    table.put(buffer(1), out)
    norm(weight, EPSILON, table, buffer(0), buffer(1)).run(num_threads)
    return out


@each_dtype
@each_threads
@pytest.mark.parametrize("width", [16, 50, 1000])
@pytest.mark.parametrize("num_rows", [1, 5, 90])
def test_norm(dtype: torch.dtype, num_threads: int, width: int, num_rows: int) -> None:
    rows, weight = random(num_rows, width).to(dtype), random(width, seed=1).to(dtype)
    out = run_norm(rows, weight, num_threads)
    assert_same(out, normed(rows, weight))
    for row in range(0, num_rows, 7):
        assert torch.equal(run_norm(rows[row : row + 1], weight, 1)[0], out[row])


class Layer:
    """Storage of one layer, and rows for it: queries, keys, values."""

    def __init__(self, dtype: torch.dtype, head_dim: int, block_size: int, num_rows: int) -> None:
        self.num_heads, self.num_key_heads, self.head_dim = 6, 2, head_dim
        shape = (20, self.num_key_heads)
        self.places = LayerKeys(
            torch.zeros(*shape, head_dim, block_size, dtype=dtype),
            torch.zeros(*shape, block_size, head_dim, dtype=dtype),
        )
        num_heads = self.num_heads + 2 * self.num_key_heads
        self.mixed = random(num_rows, num_heads * head_dim).to(dtype)
        slots = torch.randperm(20 * block_size, generator=torch.Generator().manual_seed(2))
        self.slots = slots[:num_rows]
        # Some rows are stored once more, the first of them twice.
        rows = [0, 0, 3, num_rows // 2, num_rows - 1]
        self.shared = torch.tensor(rows), slots[num_rows : num_rows + len(rows)].clone()
        self.block_size = block_size

    def with_shared(self, rows: Tensor) -> Tensor:
        """Those of all slots: rows [R, ...] and after them those that are stored once more."""
        return torch.cat((rows, rows[self.shared[0]]))

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """Queries, keys and values of the rows, [R, heads, D]."""
        heads = self.mixed.view(len(self.mixed), -1, self.head_dim)
        return heads.split([self.num_heads, self.num_key_heads, self.num_key_heads], 1)

    def stored(self) -> tuple[Tensor, Tensor]:
        """Keys and values in the slots of the rows, [R + n, K, D], and nothing anywhere else."""
        slots = torch.cat((self.slots, self.shared[1]))
        blocks, offsets = slots // self.block_size, slots % self.block_size
        keys = self.places.keys[blocks, :, :, offsets]
        values = self.places.values[blocks, :, offsets]
        for everything, some in ((self.places.keys, keys), (self.places.values, values)):
            assert everything.count_nonzero() == some.count_nonzero()
        return keys, values


@each_dtype
@each_threads
@pytest.mark.parametrize(("head_dim", "block_size"), [(16, 16), (64, 64), (80, 32)])
def test_store(dtype: torch.dtype, num_threads: int, head_dim: int, block_size: int) -> None:
    layer = Layer(dtype, head_dim, block_size, num_rows=70)
    _, key, value = layer.parts
    plan = StorePlan(layer.slots, *layer.shared)
    Store(layer.places, num_threads)(key.transpose(0, 1), value.transpose(0, 1), plan)
    keys, values = layer.stored()
    assert torch.equal(keys, layer.with_shared(key))
    assert torch.equal(values, layer.with_shared(value))


def rotated(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """As transformers does it: halves swapped, the second negated in its place."""
    left, right = heads.chunk(2, -1)
    return heads * cosines[:, None] + torch.cat((-right, left), -1) * sines[:, None]


@each_dtype
@each_threads
@pytest.mark.parametrize(("head_dim", "block_size"), [(16, 16), (64, 64), (80, 32), (96, 16)])
@pytest.mark.parametrize("has_norms", [False, True], ids=["plain", "norms"])
def test_rotate_and_store(
    dtype: torch.dtype, num_threads: int, head_dim: int, block_size: int, has_norms: bool
) -> None:
    num_rows = 150
    layer = Layer(dtype, head_dim, block_size, num_rows)
    angles = random(40, head_dim // 2, seed=3).repeat(1, 2)
    cosines, sines = angles.cos().to(dtype), angles.sin().to(dtype)
    signed = sines.clone()
    signed[:, : head_dim // 2].neg_()
    positions = torch.randint(40, (num_rows,), generator=torch.Generator().manual_seed(4))
    query, key, value = (part.clone() for part in layer.parts)
    norms = None
    if has_norms:
        weights = random(2, head_dim, seed=5).to(dtype)
        norms = HeadNorms(weights[0], weights[1], EPSILON)
        query, key = normed(query, weights[0]), normed(key, weights[1])
    table = PassTable()
    table.values[NUM_ROWS] = num_rows
    table.put(POSITIONS, positions)
    table.put(buffer(0), layer.mixed)
    StorePlan(layer.slots, *layer.shared).enter(table)
    rotation = Rotation(cosines, signed, norms)
    rotate_and_store(layer.places, layer.num_heads, rotation, table, buffer(0)).run(num_threads)
    at = (cosines[positions], sines[positions])
    keys, values = layer.stored()
    # What a norm rounded to the other side is subtracted from something of its size.
    atol = 2**-7 if has_norms else 2e-6
    assert_same(layer.parts[0], rotated(query, *at), atol)
    assert_same(keys, layer.with_shared(rotated(key, *at)), atol)
    assert torch.equal(values, layer.with_shared(value))


def test_one_thread_where_torch_has_no_openmp_of_gnu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "openmp", lambda name: None)
    rows, weight = random(90, 1000), random(1000, seed=1)
    assert_same(run_norm(rows, weight, 2), normed(rows, weight))


def _body(parameters: object) -> None:
    pass


def _other_body(parameters: object) -> None:
    pass


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where kernels are kept; nothing is compiled yet."""
    monkeypatch.setattr(compiling.numba.config, "CACHE_DIR", str(tmp_path))
    compiling._compile.cache_clear()
    yield tmp_path / "outrider" / "kernels"
    compiling._compile.cache_clear()


def run_anew() -> None:
    """As another process would: nothing is in memory."""
    compiling._compile.cache_clear()
    Call(_body, NUM_COMMON).run(1)


def test_kernels_are_kept_on_disk_by_the_sources(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = compiling.numba.config.CACHE_DIR
    run_anew()
    (kept,) = cache.iterdir()
    (file,) = kept.rglob("*.nbc")
    written = file.stat().st_mtime_ns
    run_anew()
    assert file.stat().st_mtime_ns == written
    assert before == compiling.numba.config.CACHE_DIR
    monkeypatch.setattr(compiling, "_hash_of_sources", lambda: "changed")
    run_anew()
    assert list((cache / "changed").rglob("*.nbc"))


@contextlib.contextmanager
def another_process_compiles(cache: Path) -> Iterator[None]:
    """Hold the turn of `_body`, as a process that compiles it."""
    compile_together([_other_body])
    (folder,) = cache.iterdir()
    with (folder / f"{__name__}._body.turn").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_processes_take_turns_and_say_who_compiles(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with ThreadPoolExecutor(1) as pool:
        with another_process_compiles(cache):
            waiting = pool.submit(run_anew)
            with pytest.raises(TimeoutError):
                waiting.result(0.3)
            assert not list(cache.rglob("*._body-*.nbc"))
        waiting.result(60)
    assert "compiling kernel _body, once for this CPU" in caplog.text
    caplog.clear()
    run_anew()
    assert not caplog.text


def test_a_process_that_keeps_the_turn_is_not_waited_for_any_longer(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "_TURN_S", 0.1)
    with another_process_compiles(cache):
        run_anew()
    assert list(cache.rglob("*._body-*.nbc"))


def test_a_kernel_that_another_process_compiles_comes_last(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    with monkeypatch.context() as patched, another_process_compiles(cache):
        patched.setattr(compiling, "_compile", lambda function: compiled.append(function.__name__))
        compile_together([_body, _other_body, norm])
    assert compiled == ["_other_body", "norm", "_body"]


@pytest.mark.parametrize("suffix", [".nbc", ".nbi"])
@pytest.mark.parametrize("kept", [0.0, 0.5], ids=["empty", "cut short"])
def test_a_damaged_file_is_thrown_away(
    cache: Path, suffix: str, kept: float, caplog: pytest.LogCaptureFixture
) -> None:
    run_anew()
    (file,) = cache.rglob(f"*{suffix}")
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content))])
    run_anew()
    assert "kernels are not kept in" in caplog.text
    caplog.clear()
    for _ in range(2):  # made again, and read
        run_anew()
    assert list(cache.rglob(f"*{suffix}"))
    assert not caplog.text


def test_a_disk_that_cannot_be_written_costs_only_time(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where a folder should be")
    run_anew()
    assert "kernels are compiled at every start" in caplog.text


def test_nor_does_a_user_without_a_home(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(compiling.numba.config, "CACHE_DIR", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    run_anew()
    assert "Could not determine home directory" in caplog.text


def test_a_float_among_the_parameters() -> None:
    assert float_bits(1.0) == 0x3F800000
    assert float_bits(-0.0) == 0x80000000
