from deployments.serve.full import FullDeployments


def test_the_word_of_a_full_replica_grows_old() -> None:
    now_s = 100.0
    full = FullDeployments(lambda: now_s)
    assert not full.has("Target")
    full.note("Target")
    assert not full.has("Draft")
    now_s += 3.0  # as long as a probe may take where the machine is busy
    assert full.has("Target")
    now_s += 1.0
    assert not full.has("Target")
    full.note("Target")
    assert full.has("Target")
