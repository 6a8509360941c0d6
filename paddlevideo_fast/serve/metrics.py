"""What a server counts, in the text format of Prometheus."""

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
        name = "paddlevideo_fast"
        self._requests = Counter(
            f"{name}_requests", "Requests for a prediction", ["status"], registry=self._registry
        )
        self._request_sec = Histogram(
            f"{name}_request_seconds", "Time of a request", registry=self._registry, buckets=_SECONDS
        )
        self._clips = Counter(f"{name}_clips", "Clips that were predicted", registry=self._registry)
        self._batch_clips = Histogram(
            f"{name}_batch_clips", "Clips of a batch", registry=self._registry, buckets=_CLIPS
        )
        self._batch_sec = Histogram(
            f"{name}_batch_seconds",
            "Time of a batch in the network",
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._in_flight = Gauge(
            f"{name}_requests_in_flight", "Requests that are worked on or wait", registry=self._registry
        )

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
