"""Metric families out of plain numbers, for collectors that read them when they are asked."""

import importlib.metadata
from collections.abc import Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric

__all__ = ["Values", "counter", "gauge", "histogram", "info"]

#: Values by their label values, in the order of the labels; None is left out.
Values = Mapping[tuple[str, ...], float | None]


def counter(name: str, words: str, labels: Sequence[str], values: Values) -> Metric:
    """A counter: one sample a tuple of label values; None is left out."""
    return _filled(CounterMetricFamily(name, words, labels=labels), values)


def gauge(name: str, words: str, labels: Sequence[str], values: Values) -> Metric:
    """A gauge: one sample a tuple of label values; None is left out."""
    return _filled(GaugeMetricFamily(name, words, labels=labels), values)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, values: Values) -> Metric:
    for labelled, value in values.items():
        if value is not None:
            family.add_metric(labelled, value)
    return family


def histogram(
    name: str,
    words: str,
    labels: Sequence[str],
    values: Mapping[tuple[str, ...], tuple[Sequence[float], Sequence[int], float]],
) -> Metric:
    """A histogram out of (upper bounds, counts, sum of all values) a tuple of label values.

    The counts are not added up, and there is one more of them than bounds: what is above all.
    """
    family = HistogramMetricFamily(name, words, labels=labels)
    for labelled, (bounds, counts, total) in values.items():
        buckets: list[tuple[str, float]] = []
        so_far = 0
        for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
            so_far += count
            buckets.append((bound, so_far))
        family.add_metric(labelled, buckets, total)
    return family


def info(name: str, words: str, **told: str) -> Metric:
    """What a part is: its version, and whatever else names it."""
    family = InfoMetricFamily(name, words)
    family.add_metric([], {"version": _version(), **told})
    return family


def _version() -> str:
    try:
        return importlib.metadata.version("ringfence")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
