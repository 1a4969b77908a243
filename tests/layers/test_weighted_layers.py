"""AdaptiveSpan and DCLS against their definitions: a share for each distance, in the numerator of the softmax."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from attention_probes import random_qkv, start_of
from farspan.layers import DCLS, AdaptiveSpan, LearnedLayer, bands

SHARES = [0.0, 0.37, 0.93, 1.0]
POSITIONS = [4.25, 9.5, 9.9, 20.0]


def span(**more):
    layer = AdaptiveSpan(4, **{"max_span": 20, "ramp": 6, **more}).double()
    layer.share.data.copy_(torch.tensor(SHARES))
    return layer


def dcls(progress=0.0, **more):
    layer = DCLS(4, **{"window": 3, "positions": POSITIONS, "reach": 32, "width": 2.0, **more}).double()
    # Other positions in every head.
    layer.share.data += torch.linspace(0, 0.02, len(layer.share)).double()
    layer.progress.fill_(progress)
    return layer


LAYERS = {
    "adaptive span": span,
    "dcls triangle": lambda: dcls(interpolation="triangle"),
    "dcls triangle, per layer": lambda: dcls(interpolation="triangle", per="layer"),
    "dcls gaussian": dcls,
    "dcls gaussian, per layer": lambda: dcls(per="layer"),
    "dcls gaussian, narrowed": lambda: dcls(progress=0.7),
}
EVERY_LAYER = pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)


def shares(layer, distance):
    """What a key counts at each distance `[..]`, -> `[1 or H, ..]`, from the papers' formulas."""
    ahead = (distance >= 0).double()
    if isinstance(layer, AdaptiveSpan):
        z = layer.share[:, None, None] * 20
        return ((6 + z - distance) / 6).clamp(0, 1) * ahead
    p = layer.share.unflatten(0, (layer.rows, -1))[..., None, None] * 32
    if layer.interpolation == "triangle":
        given = (1 - (distance - p).abs()).clamp_min(0)
    else:
        s = 2.0 * (0.27 / 2.0) ** min(1.0, layer.progress.item() / 0.8)
        half = -int(-3 * s // 1)
        x = torch.arange(3, 80).double()

        def bell(x):
            first = (p.round() - half).clamp_min(3)
            return (-((x - p) ** 2) / (2 * s**2)).exp() * ((x >= first) & (x <= first + 2 * half))

        given = bell(distance) / bell(x[None]).sum(-1, keepdim=True)
    return torch.where(distance < 3, ahead, given.sum(1))


def plain(layer, q, k, v, start=None, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[1] // k.shape[1]
    key = torch.arange(k.shape[2])
    distance = (torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None] - key).double()
    share = shares(layer, distance)
    if start is not None:
        share = share * (key >= start[:, None, :, None])
    scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * scale
    mass = scores.exp() * share
    total = mass.sum(-1, keepdim=True)
    return (mass / torch.where(total == 0, 1.0, total)) @ v.repeat_interleave(group, 1)


LEFT_PADDED = torch.tensor([[4], [0], [11]])
CASES = {
    "T=1": dict(q_len=1),
    "T=7": dict(q_len=7),
    "T=17": dict(q_len=17),
    "T=65": dict(q_len=65),
    "a key head for each": dict(q_len=17, kv_heads=4),
    "a key head for four": dict(q_len=33, kv_heads=1, batch=2),
    "values of another size": dict(q_len=17, value_dim=5),
    "cache": dict(q_len=5, k_len=40),
    "cache, one query": dict(q_len=1, k_len=36),
    "more queries than keys": dict(q_len=9, k_len=5),
    "left padding": dict(q_len=17, batch=3, start=LEFT_PADDED.expand(3, 17)),
    "left padding, cache": dict(q_len=4, k_len=20, batch=3, start=LEFT_PADDED.expand(3, 4)),
    "packed": dict(q_len=24, start=start_of(1, 6, 14, 3)),
    "rows that read nothing": dict(q_len=9, start=torch.tensor([[1, 2, 0, 9, 0, 6, 0, 1, 8]])),
}


def qkv(**shape):
    return random_qkv(**{"heads": 4, "kv_heads": 2, **shape})


@EVERY_LAYER
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_output_and_gradients_are_those_of_the_definition(build, case):
    start = case.get("start")
    q, k, v = qkv(**{key: value for key, value in case.items() if key != "start"})
    layer = build()
    leaves = [*(x.requires_grad_() for x in (q, k, v)), layer.share]
    out, expected = layer(q, k, v, start=start), plain(layer, q, k, v, start)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    weight = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    grads = [torch.autograd.grad((x * weight).sum(), leaves, materialize_grads=True) for x in (out, expected)]
    if isinstance(layer, AdaptiveSpan):
        # At whole spans the definition has two slopes; which one is taken has a test of its own.
        grads = [(*grad[:3], grad[3][1:3]) for grad in grads]
    if isinstance(layer, DCLS) and layer.interpolation == "triangle":
        grads = [(*grad[:3], grad[3][layer.share.detach() * 32 % 1 != 0]) for grad in grads]
    for name, a, b in zip(("q", "k", "v", "share"), *grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@EVERY_LAYER
def test_the_scale_multiplies_the_scores(build):
    q, k, v = qkv(q_len=17)
    torch.testing.assert_close(build()(q, k, v, scale=1.7), plain(build(), q, k, v, scale=1.7), atol=1e-12, rtol=0)


@EVERY_LAYER
def test_huge_scores_overflow_nothing(build):
    q, k, v = qkv(q_len=40)
    leaves = [x.requires_grad_() for x in (q * 1e3, k, v)]
    layer = build()
    out = layer(*leaves)
    grads = torch.autograd.grad(out.sum(), [*leaves, layer.share])
    assert all(x.isfinite().all() for x in (out, *grads))


@EVERY_LAYER
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_narrow_inputs_are_computed_in_fp32_under_autocast_too(build, dtype):
    q, k, v = qkv(q_len=65, dtype=dtype)
    layer = build().float()
    expected = plain(layer.double(), q.double(), k.double(), v.double())
    layer.float()
    tolerance = 1e-5 + torch.finfo(dtype).eps * v.abs().max().item()
    out = layer(q, k, v)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(q, k, v), out)


@EVERY_LAYER
def test_gradcheck(build):
    layer = build()
    share = layer.share.detach().clone()
    if isinstance(layer, AdaptiveSpan):
        share = torch.tensor([0.13, 0.37, 0.61, 0.93]).double()
    leaves = [x.requires_grad_() for x in (*qkv(q_len=12, head_dim=2, value_dim=3), share)]

    def call(q, k, v, share):
        return functional_call(layer, {"share": share}, (q, k, v), {"start": start_of(3, 9)})

    if isinstance(layer, DCLS) and layer.interpolation == "triangle":
        share.data += 0.003  # off the whole positions
    assert torch.autograd.gradcheck(call, leaves, eps=1e-7, rtol=1e-4, atol=1e-6)


@EVERY_LAYER
@pytest.mark.parametrize("length", [6, 65], ids=lambda length: f"T={length}")
def test_the_future_changes_no_bit(build, length):
    """F05."""
    q, k, v = qkv(batch=3, q_len=length, dtype=torch.float32)
    layer = build().float()
    before = layer(q, k, v)
    for j in (1, length // 2, length - 1):
        changed = [torch.cat([x[:, :, :j], 1e3 * torch.randn_like(x[:, :, j:])], 2) for x in (q, k, v)]
        assert torch.equal(layer(*changed)[:, :, :j], before[:, :, :j])


@EVERY_LAYER
def test_what_start_hides_changes_no_bit(build):
    """F04."""
    q, k, v = qkv(batch=2, q_len=65, dtype=torch.float32)
    start = torch.tensor([[30], [20]]).expand(2, 65)
    layer = build().float()
    before = layer(q, k, v, start=start)
    for x in (k, v):
        x[0, :, :30], x[1, :, :20] = 1e3, -1e3
    after = layer(q, k, v, start=start)
    assert torch.equal(before[0, :, 30:], after[0, :, 30:])
    assert torch.equal(before[1, :, 20:], after[1, :, 20:])


@EVERY_LAYER
def test_token_by_token_is_the_parallel_pass(build):
    """F16, and F08: one module at every length from 1 on."""
    q, k, v = qkv(q_len=40)
    layer = build()
    together = layer(q, k, v)
    for t in range(40):
        step = layer(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1])
        torch.testing.assert_close(step[:, :, 0], together[:, :, t], atol=1e-13, rtol=0)


@EVERY_LAYER
def test_reads_names_the_keys_that_count(build):
    layer = build()
    distance = torch.arange(90)[:, None] - torch.arange(90)
    count = shares(layer, distance.double()) > 0
    assert torch.equal(count.expand(layer.reads().heads, -1, -1), layer.reads().mask(90, 90).expand_as(count))


@EVERY_LAYER
def test_the_parameter_is_a_vector_that_no_decay_reaches(build):
    assert {name: p.ndim for name, p in build().named_parameters()} == {"share": 1}


class _Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operator returned."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else [result]:
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.numel())
        return result


@EVERY_LAYER
def test_memory_is_linear_in_the_length(build):
    largest = []
    for length in (256, 512):
        q, k, v = (x.requires_grad_() for x in qkv(q_len=length, head_dim=4))
        with _Largest() as mode:
            build()(q, k, v, start=torch.ones(1, length, dtype=torch.int64)).sum().backward()
        largest.append(mode.elements)
    assert largest[1] <= 2 * largest[0]


def test_bands_keep_nothing_but_their_inputs_for_the_backward_pass():
    q, k, v = (x.requires_grad_() for x in qkv(q_len=256))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        span()(q, k, v)
    assert max(kept) <= q.numel()
    assert bands.wide(q) == torch.float64


@EVERY_LAYER
def test_another_number_of_heads_is_refused(build):
    layer = build()
    q, k, v = random_qkv(q_len=5, heads=6, kv_heads=2)
    if getattr(layer, "rows", 4) == 1:
        assert layer(q, k, v).shape == q.shape
    else:
        with pytest.raises(ValueError, match="q must have the 4 heads of the layer, got 6"):
            layer(q, k, v)


@EVERY_LAYER
def test_initial_values_are_those_of_a_new_layer(build):
    fresh, layer = build(), build()
    for name, value in layer.initial().items():
        getattr(fresh, name).data.copy_(value)
    assert isinstance(layer, LearnedLayer)
    if isinstance(layer, AdaptiveSpan):
        assert fresh.spans.tolist() == [0.0] * 4
    else:
        assert fresh.positions.tolist() == [POSITIONS] * fresh.rows
        assert fresh.sigma == 2.0
