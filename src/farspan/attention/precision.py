"""Keeping scores and softmax in fp32 under autocast, which would compute every matrix product in bf16."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Autocast switched off inside the `with` block; nothing where it is off, or on a device that has none ("meta")."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
