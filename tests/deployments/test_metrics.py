"""The reference page of metrics is of this code, and a table writes what its rows say."""

from __future__ import annotations

from dataclasses import dataclass

from deployments.metrics import declared, main, metrics_page
from deployments.serve.instruments import Meters
from deployments.serve.metrics import Metric, Table, counter, gauge
from loadtest.report.machine import ROOT
from tests.harness.metric_pages import samples

LABELS = {"place": "x"}
PAGE = ROOT / "deployments" / "docs" / "metrics.md"


@dataclass
class Shop:
    num_sold: int = 0
    sold_by: tuple[tuple[str, int], ...] = ()
    num_open: int = 0

    def by_whom(self) -> dict[tuple[str, ...], float]:
        return {(who,): number for who, number in self.sold_by}


METRICS: tuple[Metric[Shop], ...] = (
    counter("sold", "Sold", lambda shop: shop.num_sold),
    counter("sold_by", "Sold, by whom", Shop.by_whom, "who"),
    gauge("open", "Open now", lambda shop: shop.num_open),
)


def values(meters: Meters) -> dict[str, float]:
    return samples(meters.text(), LABELS)


def test_totals_are_followed_and_begin_anew() -> None:
    meters = Meters(LABELS)
    table: Table[Shop] = Table(meters, METRICS)
    assert values(meters) == {"sold_total": 0, "open": 0}
    for shop in (Shop(3, (("a", 2),), 5), Shop(3, (("a", 2),), 4), Shop(4, (("a", 2), ("b", 2)))):
        table.follow(shop)
    sold = {"sold_total": 4, "sold_by_total:a": 2, "sold_by_total:b": 2, "open": 0}
    assert values(meters) == sold
    table.follow(Shop(1))  # a total that falls is a fault elsewhere, and no counter falls
    table.follow(Shop(4))
    assert values(meters)["sold_total"] == 4
    table.begin_anew()
    table.follow(Shop(2, (("b", 1),)))
    assert values(meters) == sold | {"sold_total": 6, "sold_by_total:b": 3}


def test_sources_of_their_own_are_added() -> None:
    meters = Meters(LABELS)
    table: Table[Shop] = Table(meters, METRICS)
    for _ in range(3):
        table.add(Shop(2, (("a", 1),), 7))
    assert values(meters) == {"sold_total": 6, "sold_by_total:a": 3, "open": 7}


def test_the_page_is_made_of_the_declarations(capsys) -> None:
    assert PAGE.read_text(encoding="utf-8") == metrics_page()
    main([])
    assert capsys.readouterr().out == metrics_page()


def test_no_metric_is_declared_twice_in_a_process_nor_by_a_router_and_another() -> None:
    """A router's page has those of all processes, and a sum over these would count it twice."""
    router, *others = declared().values()
    of_router = {one.printed for one in router}
    for metrics in (router, *others):
        names = [one.printed for one in metrics]
        assert len(set(names)) == len(names)
        assert metrics is router or of_router.isdisjoint(names)
        assert all(one.text and "|" not in one.text for one in metrics)
