"""Prometheus' text format."""

from __future__ import annotations

from moldau.broker.metrics.document import Family, HistogramSample, Kind, Sample
from moldau.ops.http.prometheus import text_of


def test_families_of_one_name_are_written_together_and_in_order() -> None:
    text = text_of(
        [
            Family("b_total", Kind.COUNTER, "B.", ("worker",), [Sample(("0",), 3)]),
            Family("a", Kind.GAUGE, "A.", (), [Sample((), 0.5)]),
            Family("b_total", Kind.COUNTER, "B.", ("worker",), [Sample(("1",), 4)]),
        ]
    )
    assert text == (
        "# HELP a A.\n# TYPE a gauge\na 0.5\n"
        '# HELP b_total B.\n# TYPE b_total counter\nb_total{worker="0"} 3\nb_total{worker="1"} 4\n'
    )


def test_labels_are_escaped() -> None:
    text = text_of([Family("a", Kind.GAUGE, "x\ny", ("t",), [Sample(('q"\\\n',), 1)])])
    assert text == '# HELP a x\\ny\n# TYPE a gauge\na{t="q\\"\\\\\\n"} 1\n'


def test_buckets_of_histograms_are_cumulated() -> None:
    histogram = HistogramSample(("get",), [2, 0, 3], 7.25)
    family = Family("d", Kind.HISTOGRAM, "D.", ("api",), histograms=[histogram], bounds=[0.1, 1])
    assert text_of([family]).splitlines()[2:] == [
        'd_bucket{api="get",le="0.1"} 2',
        'd_bucket{api="get",le="1"} 2',
        'd_bucket{api="get",le="+Inf"} 5',
        'd_sum{api="get"} 7.25',
        'd_count{api="get"} 5',
    ]
