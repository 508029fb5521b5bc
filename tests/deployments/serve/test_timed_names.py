from deployments.serve.timed_names import FULL_S, MAX_KEPT, TimedNames


def test_the_word_of_a_full_replica_grows_old() -> None:
    now_s = 100.0
    full = TimedNames(FULL_S, lambda: now_s)
    full.add("Target")
    assert [*full.names()] == ["Target"]
    now_s += 3.0  # as long as a probe may take where the machine is busy
    assert "Target" in full.names()
    now_s += 1.0
    assert not full.names()


def test_the_newest_are_kept() -> None:
    kept = TimedNames(1.0, lambda: 0.0)
    for name in (*range(1 + MAX_KEPT), 2):
        kept.add(str(name))
    assert [*kept.names()] == [*map(str, (1, *range(3, 1 + MAX_KEPT), 2))]
