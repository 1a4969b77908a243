"""The C++ kernels of every instruction set that this CPU runs, and not only those of the fastest."""

from __future__ import annotations

import pytest
import torch

from attention_probes import PATTERNS, assert_same, core, needs_core, random_qkv, run, start_of

pytestmark = [needs_core, pytest.mark.usefixtures("poisoned_memory")]


@pytest.fixture(params=[] if core is None else core.instruction_sets())
def kernels(request):
    before = core.kernel_instruction_set()
    if not core.use_kernels(request.param):
        pytest.skip(f"this core has no kernels for {request.param} alone")
    yield request.param
    assert core.use_kernels(before)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("head_dim", [8, 13, 64])
@pytest.mark.parametrize("group", [1, 4])
def test_all_kernels_are_exact(kernels, name, head_dim, group):
    assert core.kernel_instruction_set() == kernels
    q, k, v = random_qkv(heads=group, q_len=151, k_len=163, head_dim=head_dim, dtype=torch.float32)
    options = {"start": start_of(70, 93)[:, -151:]}
    found = run("cpu", q, k, v, PATTERNS[name], **options)
    assert_same(found, run("reference", q.double(), k.double(), v.double(), PATTERNS[name], **options))


def test_kernels_that_are_not_there_are_refused():
    before = core.kernel_instruction_set()
    assert not core.use_kernels("no such instruction set")
    assert core.kernel_instruction_set() == before
