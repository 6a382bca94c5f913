"""What Prometheus reads from a service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from kalstream.serve.service import Service

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_PATHS: Final = ("predict", "learn", "stream", "metrics", "drift", "snapshot", "windows")


class Gauges:
    """Counters and gauges of one service, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        names: tuple[str, ...] = ("endpoint", "method", "status")
        self.requests = Counter(
            "kalstream_requests", "Requests answered.", names, registry=self.registry
        )
        self.seconds = Histogram(
            "kalstream_request_seconds",
            "Time to answer a request.",
            ("endpoint",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.queued = Gauge(
            "kalstream_queued_rows", "Rows that wait to be learned.", registry=self.registry
        )
        self.uptime = Gauge(
            "kalstream_uptime_seconds", "Time since the start.", registry=self.registry
        )
        of_model = {
            "rows": ("kalstream_rows", "Events that a model has seen."),
            "scored": ("kalstream_scored_rows", "Rows whose label came."),
            "waiting": ("kalstream_waiting_rows", "Rows that wait for their labels."),
            "expired": ("kalstream_expired_rows", "Rows that were given up."),
            "alarms": ("kalstream_drift_alarms", "Drift alarms."),
            "accuracy": ("kalstream_accuracy", "Share of right predictions."),
            "log_loss": ("kalstream_log_loss", "Mean log-loss."),
            "rmse": ("kalstream_rmse", "Root mean squared error."),
        }
        self.of_model = {
            key: Gauge(name, help, ("model",), registry=self.registry)
            for key, (name, help) in of_model.items()
        }

    def request(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count a request; paths that clients make up are one endpoint."""
        last = path.rsplit("/", 1)[-1]
        endpoint = last if last in _PATHS else "other"
        known = method if method in ("GET", "POST", "PUT", "DELETE") else "other"
        self.requests.labels(endpoint, known, str(status)).inc()
        self.seconds.labels(endpoint).observe(seconds)

    def text(self, service: Service, summaries: dict[str, dict[str, object]]) -> bytes:
        """Everything in the format of Prometheus."""
        self.queued.set(service.n_queued)
        self.uptime.set(time.time() - service.started)
        for gauge in self.of_model.values():
            gauge.clear()
        for name, summary in summaries.items():
            for key, value in _numbers(summary).items():
                self.of_model[key].labels(name).set(value)
        return generate_latest(self.registry)


def _numbers(summary: dict[str, object]) -> dict[str, float]:
    """Those numbers of `Served.summary` that are gauges."""
    parts = [summary, *(summary.get(name) or {} for name in ("total", "waiting", "drift"))]
    out: dict[str, float] = {}
    for part in parts:
        assert isinstance(part, dict)
        for key in (
            "rows",
            "scored",
            "waiting",
            "expired",
            "alarms",
            "accuracy",
            "log_loss",
            "rmse",
        ):
            if isinstance(part.get(key), int | float):
                out[key] = float(part[key])
    return out
