"""Which format a scrape gets: what the header asks for is what the body is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lifeboat.observe.exposition import OPENMETRICS_TYPE, TEXT_TYPE, render


class OneCounter(Collector):
    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("lifeboat_test", "A counter.", value=3)


PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "is_openmetrics"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("application/json", False),
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", True),
        ('Application/OpenMetrics-Text; version="1.0.0"', True),
        ("application/openmetrics-text;version=0.0.1,text/plain;version=0.0.4;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.9", False),
        ("application/openmetrics-text;q=NaN", False),
        (";;;,,q=", False),
        ("application/openmetrics-text;version=1.0.0\r\nX-Evil: 1", True),
    ],
)
def test_the_format_is_the_one_that_the_header_prefers(
    accept: str | None, is_openmetrics: bool
) -> None:
    """Cases BUG-186 and BUG-187: body and Content-Type agree, and nothing is echoed."""
    page, content_type = render(OneCounter(), accept)
    assert content_type == (OPENMETRICS_TYPE if is_openmetrics else TEXT_TYPE)
    assert page.endswith(b"# EOF\n") is is_openmetrics
    assert b"lifeboat_test_total 3.0\n" in page


@given(st.text(max_size=200))
def test_no_header_breaks_the_page_or_gets_into_it(accept: str) -> None:
    assert render(OneCounter(), accept)[1] in (OPENMETRICS_TYPE, TEXT_TYPE)
