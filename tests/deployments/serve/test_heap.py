"""Collections pass over what was frozen, and take what comes later."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from deployments.serve.heap import freeze_heap, importing


class Node:
    def __init__(self) -> None:
        self.itself = self  # a cycle, which only a collection ends


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_garbage_is_collected_before_the_rest_is_frozen() -> None:
    gone = weakref.ref(Node())
    kept = Node()
    freeze_heap()
    assert gone() is None
    assert gc.get_freeze_count() > 1000
    assert not any(each is kept for each in gc.get_objects()), "a collection passes over it"


def test_garbage_that_comes_later_is_collected() -> None:
    freeze_heap()
    num_frozen = gc.get_freeze_count()
    later = weakref.ref(Node())
    assert gc.isenabled()
    gc.collect()
    assert later() is None
    assert gc.get_freeze_count() <= num_frozen


def test_nothing_is_collected_while_modules_are_imported() -> None:
    with importing():
        assert not gc.isenabled()
        made = Node()
    assert gc.isenabled()
    assert not any(each is made for each in gc.get_objects())
