"""/metrics: the engine's counts for Prometheus, under vLLM's names behind ``quantkit:``."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response

from quantkit.server.state import ServerState


class Stats(Protocol):
    """What is read of the engine's statistics."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def total_blocks(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def finished(self) -> Mapping[str, int]: ...


class EngineCollector(Collector):
    """Reads the engine whenever the metrics are asked for; nothing before it is loaded."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """All metrics, labeled with the model's name."""
        service = self._state.loaded
        if service is None:
            return
        stats: Stats = service.engine.stats()
        used = 1 - stats.free_blocks / max(stats.total_blocks, 1)
        for name, text, value in (
            ("num_requests_running", "Sequences in the current step.", stats.running),
            ("num_requests_waiting", "Sequences that wait.", stats.waiting),
            ("kv_cache_usage_perc", "Used share of the cache, 0 to 1.", used),
        ):
            gauge = GaugeMetricFamily(f"quantkit:{name}", text, labels=["model_name"])
            gauge.add_metric([service.name], value)
            yield gauge
        for name, text, value in (
            ("prompt_tokens", "Tokens of started prompts.", stats.prompt_tokens),
            ("generation_tokens", "Generated tokens.", stats.output_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up.", stats.prompt_tokens),
            ("prefix_cache_hits", "Prompt tokens found.", stats.cached_tokens),
            ("num_preemptions", "Sequences that lost their blocks.", stats.preemptions),
        ):
            counter = CounterMetricFamily(f"quantkit:{name}", text, labels=["model_name"])
            counter.add_metric([service.name], value)
            yield counter
        ended = CounterMetricFamily(
            "quantkit:request_success",
            "Sequences that ended, by reason.",
            labels=["model_name", "finished_reason"],
        )
        for reason, count in sorted(stats.finished.items()):
            ended.add_metric([service.name, reason], count)
        yield ended


def metrics_response(state: ServerState) -> Response:
    """The answer to GET /metrics."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(state))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
