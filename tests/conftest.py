"""Shared by all tests: where helper modules lie, how hypothesis runs, and memory that shows when nobody wrote to it."""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis
import pytest
import torch

# Under --import-mode=importlib pytest leaves sys.path alone, and `attention_probes` is imported by several folders.
sys.path.append(str(Path(__file__).parent))

# A neighbour on the machine can stretch one example beyond any deadline. Failures must come back on the next run.
hypothesis.settings.register_profile("farspan", deadline=None, derandomize=True)
hypothesis.settings.load_profile("farspan")


@pytest.fixture
def poisoned_memory():
    """Uninitialised tensors hold NaN (or the largest integer), so an output that is not written fails its test."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan()
    yield
    torch.use_deterministic_algorithms(before)
