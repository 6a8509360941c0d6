"""What a server counts, in the text format of Prometheus."""

from typing import Any

from paddlevideo_fast.extras import needing

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_CLIPS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters and histograms of one server.

    Raises:
        MissingExtraError: prometheus_client is not installed.
    """

    def __init__(self) -> None:
        with needing("serve", "a server"):
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        self._registry = CollectorRegistry()
        own: Any = {"namespace": "paddlevideo_fast", "registry": self._registry}
        timed: Any = {**own, "buckets": _SECONDS}
        self._requests = Counter("requests", "Requests for a prediction", ["status"], **own)
        self._request_sec = Histogram("request_seconds", "Time of a request", **timed)
        self._clips = Counter("clips", "Clips that were predicted", **own)
        self._batch_clips = Histogram("batch_clips", "Clips of a batch", buckets=_CLIPS, **own)
        self._batch_sec = Histogram("batch_seconds", "Time of a batch in the network", **timed)
        self._in_flight = Gauge("requests_in_flight", "Requests that are worked on or wait", **own)

    def add_request(self, status: int, sec: float) -> None:
        """Counts a request that was answered."""
        self._requests.labels(str(status)).inc()
        self._request_sec.observe(sec)

    def add_batch(self, num_clips: int, sec: float) -> None:
        """Counts a batch that was computed."""
        self._clips.inc(num_clips)
        self._batch_clips.observe(num_clips)
        self._batch_sec.observe(sec)

    def set_in_flight(self, number: int) -> None:
        """Sets the number of requests that are worked on or wait."""
        self._in_flight.set(number)

    def text(self) -> bytes:
        """All of it, as /metrics gives it."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)
