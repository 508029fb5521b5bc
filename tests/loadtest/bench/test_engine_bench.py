"""The engine benchmark end to end on a tiny pair; it needs no serving library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.bench.lines import PairBench, num_lines
from loadtest.bench.loop import Ask, EngineLoopBench, Learnt
from loadtest.bench.passes import (
    decode_shapes,
    measure_passes,
    memory_floor_ms,
    num_product_bytes,
)
from loadtest.bench.random_pair import make_random_pair
from models.config import EngineConfig
from models.engine.runner import ModelRunner

PROMPTS = [[5, 9, 3, 7], [200, 6, 6], [14, 90], [31, 8, 8, 8, 8]]
SERVING = ("ray", "zmq", "fastapi", "starlette", "uvicorn", "httpx")
SCRIPT = f"""
import sys
from loadtest.bench.engine import main
main(sys.argv[1:])
loaded = [name for name in {SERVING!r} if name in sys.modules]
sys.exit(f"loaded: {{loaded}}" if loaded else 0)
"""


@pytest.fixture(scope="module")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    make_random_pair("tiny", folder)
    return folder


def runner(path: Path, *, kv_cache_tokens: int = 2048) -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            model_path=str(path),
            max_model_len=256,
            kv_cache_tokens=kv_cache_tokens,
            enable_prefix_caching=False,  # a bench makes new engines for each run
            num_threads=1,
        )
    )


def test_it_runs_without_ray_sockets_and_http(tmp_path: Path) -> None:
    output = tmp_path / "engine.json"
    words = ["--random", "tiny", "--threads", "1", "--quick", "--tokens", "6", "--batch", "1", "2"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words, "--context", "20", "--output", str(output)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    content = json.loads(output.read_text())
    assert content["is_complete"]
    assert str(tmp_path) not in output.read_text()
    pair = content["pairs"]["random tiny"]
    ways = {(line["way"], line["batch"]) for line in pair["lines"]}
    ours = {(way, batch) for way in ("bare engine", "k=0", "k=3", "adaptive") for batch in (1, 2)}
    others = {("assisted k=3", 1), ("assisted heuristic", 1)}
    assert ways == ours | others | {("transformers", 1), ("transformers", 2)}
    assert all(line["tokens_per_s"] > 0 for line in pair["lines"])
    assert [line["name"] for line in pair["target"]["passes"]][:3] == ["1x1", "1x2", "1x6"]
    assert pair["target"]["passes"][0]["to_one_row"] == 1.0
    assert "k=3" in done.stdout


def test_random_pairs_agree_as_often_as_asked(tmp_path: Path) -> None:
    lengths = {}
    for acceptance in (1.0, 0.0):
        folder = tmp_path / str(acceptance)
        make_random_pair("tiny", folder, acceptance=acceptance)
        bench = EngineLoopBench(runner(folder / "target"), runner(folder / "draft"))
        run = bench.run(PROMPTS, batch=4, k=3, num_tokens=40)
        lengths[acceptance] = run.tokens_per_round
    assert lengths[1.0] > 3.5  # 4 but for the last round
    assert lengths[0.0] < 1.3


def test_a_draft_makes_way_for_another_after_half_of_the_requests(tmp_path: Path) -> None:
    folders = {acceptance: tmp_path / str(acceptance) for acceptance in (1.0, 0.0)}
    for acceptance, folder in folders.items():
        make_random_pair("tiny", folder, acceptance=acceptance)
    target, good, bad = (
        runner(folders[acceptance] / part)
        for acceptance, part in ((1.0, "target"), (1.0, "draft"), (0.0, "draft"))
    )
    asks = [Ask(prompt=prompt, num_tokens=40) for prompt in PROMPTS]
    bench = EngineLoopBench(target, good, bad)
    run = bench.serve(asks, batch=1, k=3, learnt=Learnt())
    # Two texts of 10 rounds with 3 accepted tokens each, two of 40 rounds with hardly any.
    assert 1.3 < run.tokens_per_round < 2.2
    assert set(run.rounds_by_k) <= {0, 1, 2, 3}


def test_what_is_learnt_is_kept_from_run_to_run(tiny_pair: Path) -> None:
    bench = EngineLoopBench(runner(tiny_pair / "target"), runner(tiny_pair / "draft"))
    asks = [Ask(prompt=prompt, num_tokens=8, temperature=0.7, seed=3) for prompt in PROMPTS]
    learnt = Learnt()
    num_plans = []
    for _ in range(2):
        bench.serve(asks, batch=2, k=None, learnt=learnt)
        num_plans.append(sum(learnt.planner.stats.lengths.values()))
    assert 0 < num_plans[0] < num_plans[1]
    assert [name for name, _ in learnt.acceptance] == ["draft_model"]


def test_products_are_those_of_the_whole_model(tiny_pair: Path) -> None:
    target = runner(tiny_pair / "target")
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128
    assert num_product_bytes(target) == 2 * (2 * layer + 64 * 256)
    assert memory_floor_ms(target) > 0


def test_passes_give_their_blocks_back_and_skip_what_does_not_fit(tiny_pair: Path) -> None:
    target = runner(tiny_pair / "target")
    shapes = decode_shapes(target, context=200)
    assert [shape.name for shape in shapes] == [
        *("1x1", "1x2", "1x6", "4x1", "4x6", "8x1", "8x6"),
        "128 new",  # 64 sessions do not fit in the cache, 512 rows not in the context
    ]
    times = measure_passes(target, shapes[:2], 1)
    assert [(time.name, time.num_rows) for time in times] == [("1x1", 1), ("1x2", 2)]
    assert all(time.pass_ms > 0 and time.products_ms > 0 for time in times)
    target.pool.check([])


def test_every_line_answers_all_its_tokens(tiny_pair: Path) -> None:
    bench = PairBench(
        tiny_pair,
        dtype="bfloat16",
        device="cpu",
        num_threads=1,
        max_model_len=256,
        kv_cache_tokens=2048,
    )
    done: list[None] = []
    for batch in (1, 2):
        lines = bench.measure(
            PROMPTS, batch, ks=[2], num_tokens=5, repeats=1, on_done=lambda: done.append(None)
        )
        assert len(lines) == num_lines(batch, [2])
        assert all(line.tokens_per_s > 0 and line.batch == batch for line in lines)
    assert len(done) == num_lines(1, [2]) + num_lines(2, [2])
    bench.target.pool.check([])
    bench.draft.pool.check([])
