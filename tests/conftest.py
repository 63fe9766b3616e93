"""What every test shares: no model hub, reproducible examples, and GPU tests skipped by name."""

import os

# Set before anything imports huggingface_hub: no test of ours may reach the model hub.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
from hypothesis import HealthCheck, settings

SLOW_MACHINE = [HealthCheck.too_slow]
settings.register_profile(
    "ci", max_examples=50, derandomize=True, deadline=None, suppress_health_check=SLOW_MACHINE
)
settings.register_profile(
    "deep", max_examples=2000, deadline=None, suppress_health_check=SLOW_MACHINE
)
settings.load_profile("ci")  # pytest --hypothesis-profile=deep takes the other


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the GPU tests, with the reason, where no CUDA device is."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="gpu: this machine has no CUDA device"))
