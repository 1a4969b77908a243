"""Keeping scores and softmax in fp32 under autocast, which would compute every matrix product in bf16."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Autocast switched off inside the `with` block; nothing on a device that has none, such as "meta"."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
