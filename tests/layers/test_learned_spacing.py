"""LearnedSpacing against section A4 of static-patterns.md, written out key by key."""

from __future__ import annotations

import math

import pytest
import torch
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from attention_probes import random_qkv, start_of
from farspan import Lines, attention, patterns
from farspan.layers import LearnedSpacing

FIBONACCI = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987]


def spacing(window=3, theta=0.0, rungs=15, low=0.5, high=1.5):
    layer = LearnedSpacing(window, rungs, low, high).double()
    layer.theta.data.fill_(theta)
    return layer


def spacing_of(alpha, window, rungs=15):
    """A layer whose alpha is exactly `alpha`: theta stays 0, in the middle of the range."""
    layer = spacing(window, 0.0, rungs, alpha / 2, alpha * 1.5)
    assert layer.alpha.item() == alpha
    return layer


def plain(q, k, v, theta, start=None, *, window=3, low=0.5, high=1.5, scale=None):
    """A4 row by row: the window's keys, then one interpolated key and value for each rung, one softmax over all."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    alpha = low + (high - low) * torch.sigmoid(theta)
    group = q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    rows = []
    for b in range(q.shape[0]):
        for i in range(q.shape[2]):
            t = k.shape[2] - q.shape[2] + i
            first = 0 if start is None else max(0, int(start[b, i]))
            near = [j for j in range(t - window + 1, t + 1) if j >= first]
            columns = [(x[b, :, near].unbind(1) if near else ()) for x in (keys, values)]
            columns = [list(x) for x in columns]
            used = set()
            for f in FIBONACCI:
                distance = alpha * f
                lower = math.floor(distance.item())
                if round(distance.item()) < window or lower in used:
                    continue
                used.add(lower)
                if t - lower < first:
                    continue
                fraction = distance - lower
                for x, column in zip((keys, values), columns, strict=True):
                    column.append((1 - fraction) * x[b, :, t - lower] + fraction * x[b, :, max(t - lower - 1, first)])
            if not columns[0]:
                rows.append(0 * q[b, :, i, :1] * v[b, :1, :1].sum())
                rows[-1] = rows[-1].expand(-1, v.shape[3])
                continue
            scores = (torch.stack(columns[0], 1) * q[b, :, i, None]).sum(-1) * scale
            rows.append((scores.softmax(1)[..., None] * torch.stack(columns[1], 1)).sum(1))
    return torch.stack(rows).unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2)


LEFT_PADDED = torch.tensor([[4], [0], [11]])
CASES = {
    "T=1": dict(q_len=1),
    "T=7": dict(q_len=7),
    "T=17": dict(q_len=17),
    "T=65": dict(q_len=65),
    "a key head for each query head": dict(q_len=17, heads=4, kv_heads=4),
    "a key head for two": dict(q_len=17, heads=4, kv_heads=2, batch=2),
    "a key head for four": dict(q_len=17, heads=4, kv_heads=1),
    "values of another size": dict(q_len=17, value_dim=5),
    "cache": dict(q_len=5, k_len=40, heads=4, kv_heads=2),
    "cache, one query": dict(q_len=1, k_len=36),
    "more queries than keys": dict(q_len=9, k_len=5),
    "left padding": dict(q_len=17, batch=3, heads=4, kv_heads=2, start=LEFT_PADDED.expand(3, 17)),
    "left padding, cache": dict(q_len=4, k_len=20, batch=3, start=LEFT_PADDED.expand(3, 4)),
    "packed": dict(q_len=24, start=start_of(1, 6, 14, 3)),
    "rows that read nothing": dict(q_len=9, start=torch.tensor([[1, 2, 0, 9, 0, 6, 0, 1, 8]])),
    "start before the first key": dict(q_len=9, start=torch.full((1, 9), -3)),
}


@pytest.mark.parametrize("theta", [0.0, 0.3, -2.0], ids=["alpha=1", "alpha=1.07", "alpha=0.62"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_output_and_gradients_are_those_of_the_definition(case, theta):
    start = case.get("start")
    q, k, v = random_qkv(**{key: value for key, value in case.items() if key != "start"})
    layer = spacing(theta=theta)
    leaves = [*(x.requires_grad_() for x in (q, k, v)), layer.theta]
    out, expected = layer(q, k, v, start=start), plain(q, k, v, layer.theta, start)
    assert out.shape == (*q.shape[:3], v.shape[3])
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    weight = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    grads = [torch.autograd.grad((x * weight).sum(), leaves, materialize_grads=True) for x in (out, expected)]
    for name, a, b in zip(("q", "k", "v", "theta"), *grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11, msg=lambda text, name=name: f"{name}: {text}")


def test_the_scale_multiplies_the_scores():
    q, k, v = random_qkv(q_len=17)
    layer = spacing(theta=0.3)
    torch.testing.assert_close(layer(q, k, v, scale=1.7), plain(q, k, v, layer.theta, scale=1.7), atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_narrow_inputs_are_computed_in_fp32(dtype):
    q, k, v = random_qkv(q_len=65, heads=4, kv_heads=2, dtype=dtype)
    layer = spacing(theta=0.3).float()
    expected = plain(q.double(), k.double(), v.double(), layer.theta.double())
    out = layer(q, k, v)
    assert out.dtype == dtype
    # fp32 along the way, then one rounding of what the window gives and one of the result.
    tolerance = 1e-5 + torch.finfo(dtype).eps * v.abs().max().item()
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=0)


def test_autocast_does_not_narrow_the_scores():
    q, k, v = random_qkv(q_len=33, dtype=torch.float32)
    layer = spacing(theta=0.3).float()
    expected = layer(q, k, v)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(q, k, v), expected)


def test_gradcheck_with_theta():
    """Finite differences where no rung sits on a position (A4 asks for 1e-2; fp64 gives 1e-6)."""
    layer = spacing(theta=0.3)
    theta = torch.tensor([0.3], dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (*random_qkv(q_len=12, head_dim=2, value_dim=3), theta)]
    start = start_of(3, 9)

    def call(q, k, v, theta):
        return functional_call(layer, {"theta": theta}, (q, k, v), {"start": start})

    assert torch.autograd.gradcheck(call, leaves, eps=1e-7, rtol=1e-5, atol=1e-7)


def test_theta_has_a_gradient_at_an_integer_alpha():
    """At alpha = 1 every rung sits on a position: floor and ceiling would be one key and the gradient 0."""
    q, k, v = random_qkv(q_len=40)
    layer = spacing(theta=0.0)
    weight = torch.randn_like(v[:, :1]).expand(-1, 2, -1, -1)

    def loss(theta):
        return (functional_call(layer, {"theta": torch.tensor([theta]).double()}, (q, k, v)) * weight).sum()

    (grad,) = torch.autograd.grad((layer(q, k, v) * weight).sum(), layer.theta)
    forward_difference = (loss(1e-7) - loss(0.0)) / 1e-7
    assert abs(grad.item()) > 0.1
    assert grad.item() == pytest.approx(forward_difference.item(), rel=1e-5)


@pytest.mark.parametrize("theta", [0.0, 0.3, -3.0], ids=str)
def test_a_window_over_everything_is_full_causal_attention(theta):
    q, k, v = random_qkv(q_len=17, heads=4, kv_heads=2)
    assert torch.equal(spacing(17, theta)(q, k, v), attention(q, k, v, Lines(range(17))))


@pytest.mark.parametrize("window", [1, 4, 13], ids=lambda window: f"w={window}")
@pytest.mark.parametrize("alpha", [1.0, 2.0, 3.0], ids=lambda alpha: f"alpha={alpha}")
def test_an_integer_alpha_reads_what_the_frozen_pattern_reads(alpha, window):
    q, k, v = random_qkv(batch=2, q_len=65, heads=4, kv_heads=2)
    start = torch.tensor([[0], [9]]).expand(2, 65)
    layer = spacing_of(alpha, window)
    expected = attention(q, k, v, layer.freeze(), start=start)
    torch.testing.assert_close(layer(q, k, v, start=start), expected, atol=1e-13, rtol=0)


@pytest.mark.parametrize("theta", [0.0, 0.3, -0.9, 2.5, -40.0, 40.0], ids=str)
@pytest.mark.parametrize("rungs", [0, 1, 15], ids=lambda rungs: f"{rungs} rungs")
def test_frozen_is_the_integer_pattern_of_alpha(theta, rungs):
    layer = spacing(5, theta, rungs)
    assert layer.freeze() == patterns.fibonacci(5, 0.5 + 1 / (1 + math.exp(-theta)), rungs)


def test_alpha_stays_in_its_range_and_starts_in_the_middle():
    assert LearnedSpacing(5, low=0.25, high=4).alpha.item() == 2.125
    for theta, alpha in ((-40, 0.25), (40, 4)):
        assert spacing(5, theta, low=0.25, high=4).alpha.item() == pytest.approx(alpha)


def weights_of(layer, length, start=None):
    """READOUT of cases.md: all scores equal, so a row shows its columns' shares of the keys."""
    q = torch.zeros(1, 1, length, 1).double()
    return layer(q, q, torch.eye(length).double()[None, None], start=start)[0, 0]


def test_readout_of_equal_lower_keys_and_rungs_inside_the_window():
    """alpha = 0.5, w = 1: 0.5 rounds to 0, inside; 1 and 1.5 share the key at 1; 2.5, 4, 6.5, 10.5 follow."""
    weights = weights_of(spacing_of(0.5, 1), 11)
    # Six columns for the last query. The rung at 10.5 has no further key: the first one counts whole.
    columns = {0: 1, 1: 1, 2: 0.5, 3: 0.5, 4: 1, 6: 0.5, 7: 0.5, 10: 1}
    expected = torch.tensor([columns.get(10 - j, 0) / 6 for j in range(11)], dtype=torch.float64)
    torch.testing.assert_close(weights[10], expected, atol=1e-15, rtol=0)
    # One position earlier that rung is beyond the first key.
    expected = torch.tensor([columns.get(9 - j, 0) / 5 for j in range(11)], dtype=torch.float64)
    torch.testing.assert_close(weights[9], expected, atol=1e-15, rtol=0)


def test_readout_of_a_half_that_rounds_into_the_window():
    """0.5 * 5 = 2.5 rounds half to even, to 2, as the integer patterns do: inside w = 3, outside w = 2."""
    assert not weights_of(spacing_of(0.5, 3), 4)[3, 0]
    # The window's two keys, the rung at 1.5, and the one at 2.5: half on the key at 2, half on the first.
    assert weights_of(spacing_of(0.5, 2), 4)[3, 0] == 0.5 / 4


def test_readout_at_start():
    """The first key of a document counts whole, and nothing before it is read."""
    weights = weights_of(spacing_of(1.5, 1), 12, torch.full((1, 12), 4))
    # Distances 1.5, 3, 4.5, 7.5 from position 11, which may read back to 4.
    columns = {0: 1, 1: 0.5, 2: 0.5, 3: 1, 4: 0.5, 5: 0.5, 7: 1}
    expected = torch.tensor([columns.get(11 - j, 0) / 5 for j in range(12)], dtype=torch.float64)
    torch.testing.assert_close(weights[11], expected, atol=1e-15, rtol=0)
    assert not weights[:4].any()


@pytest.mark.parametrize("window", [1, 3, 9], ids=lambda window: f"w={window}")
@pytest.mark.parametrize("theta", [0.3, -1.1, 2.5], ids=str)
def test_reads_names_the_keys_that_are_read(theta, window):
    layer = spacing(window, theta)
    assert torch.equal(weights_of(layer, 90) > 0, layer.reads().mask(90, 90))


def test_without_rungs_it_is_the_window():
    q, k, v = random_qkv(q_len=17)
    assert torch.equal(spacing(4, 0.3, rungs=0)(q, k, v), attention(q, k, v, patterns.sliding_window(4)))
    assert spacing(4, 0.3, rungs=0).reads() == patterns.sliding_window(4)


@pytest.mark.parametrize("length", [6, 65], ids=lambda length: f"T={length}")
def test_the_future_changes_no_bit(length):
    """F05."""
    q, k, v = random_qkv(batch=3, q_len=length, dtype=torch.float32)
    layer = spacing(theta=0.3).float()
    before = layer(q, k, v)
    for j in (1, length // 2, length - 1):
        changed = [torch.cat([x[:, :, :j], 1e3 * torch.randn_like(x[:, :, j:])], 2) for x in (q, k, v)]
        assert torch.equal(layer(*changed)[:, :, :j], before[:, :, :j])


def test_what_start_hides_changes_no_bit():
    """F04: neither padding nor the document before reaches a query, not through an interpolated key either."""
    q, k, v = random_qkv(batch=2, q_len=65, dtype=torch.float32)
    start = torch.tensor([[30], [20]]).expand(2, 65)
    layer = spacing(theta=0.3).float()
    before = layer(q, k, v, start=start)
    for x in (k, v):
        x[0, :, :30], x[1, :, :20] = 1e3, -1e3
    after = layer(q, k, v, start=start)
    assert torch.equal(before[0, :, 30:], after[0, :, 30:])
    assert torch.equal(before[1, :, 20:], after[1, :, 20:])


def test_a_row_of_a_batch_is_a_run_of_its_own():
    """F04."""
    q, k, v = random_qkv(batch=4, q_len=33, heads=4, kv_heads=2)
    start = torch.tensor([[0], [5], [32], [12]]).expand(4, 33)
    layer = spacing(theta=0.3)
    together = layer(q, k, v, start=start)
    for b in range(4):
        s = slice(b, b + 1)
        torch.testing.assert_close(layer(q[s], k[s], v[s], start=start[s]), together[s], atol=1e-14, rtol=0)


def test_token_by_token_is_the_parallel_pass():
    """F16, and F08: one module at every length from 1 on."""
    q, k, v = random_qkv(q_len=40)
    layer = spacing(theta=0.3)
    together = layer(q, k, v)
    for t in range(40):
        step = layer(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1])
        torch.testing.assert_close(step[:, :, 0], together[:, :, t], atol=1e-14, rtol=0)


@pytest.mark.parametrize("with_start", [True, False], ids=["start", "no start"])
def test_no_value_is_read_back_to_the_host(with_start):
    """A meta tensor has none: `item`, `tolist` or an `if` on one raises."""
    layer = spacing(theta=0.3).to("meta")
    q, k, v = (x.to("meta").requires_grad_() for x in random_qkv(batch=2, q_len=33, value_dim=5))
    start = torch.zeros(2, 33, dtype=torch.int64, device="meta") if with_start else None
    out = layer(q, k, v, start=start)
    assert out.shape == (2, 2, 33, 5)
    out.sum().backward()
    assert layer.theta.grad is not None


def test_compiled_is_eager_for_any_alpha():
    """One graph: alpha is data, not a constant of it."""
    layer = spacing(theta=0.0)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    q, k, v = random_qkv(q_len=40)
    for theta in (0.0, 0.3, -2.0):
        layer.theta.data.fill_(theta)
        results = []
        for call in (compiled, layer):
            out = call(q, k, v)
            results.append((out, *torch.autograd.grad(out.square().sum(), layer.theta)))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


class _Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operator returned."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else [result]:
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.numel())
        return result


def test_memory_is_linear_in_the_length():
    largest = []
    for length in (200, 400):
        q, k, v = (x.requires_grad_() for x in random_qkv(q_len=length, head_dim=4))
        with _Largest() as mode:
            spacing(theta=0.3)(q, k, v, start=torch.ones(1, length, dtype=torch.int64)).sum().backward()
        largest.append(mode.elements)
    assert largest[1] <= 2 * largest[0]


def test_theta_is_one_number_that_optimisers_take_for_no_matrix():
    layer = LearnedSpacing(3)
    assert {name: (p.shape, p.requires_grad) for name, p in layer.named_parameters()} == {"theta": ((1,), True)}


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (dict(window=0), ValueError, "window must be an integer >= 1, got 0"),
        (dict(window=-3), ValueError, "window .* got -3"),
        (dict(window=2.5), TypeError, "window .* got 2.5"),
        (dict(window=True), ValueError, "window .* got True"),
        (dict(window=3, rungs=-1), ValueError, "rungs must be an integer >= 0, got -1"),
        (dict(window=3, rungs="15"), TypeError, "rungs .* got '15'"),
        (dict(window=3, low=0), ValueError, "low must be a finite number > 0, got 0"),
        (dict(window=3, low=math.nan), ValueError, "low .* got nan"),
        (dict(window=3, high=math.inf), ValueError, "high .* got inf"),
        (dict(window=3, high="1.5"), TypeError, "high must be a number > 0, got '1.5'"),
        (dict(window=3, low=1.5), ValueError, "high must be above low, got 1.5 and 1.5"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_wrong_arguments_are_refused_by_name(arguments, error, words):
    with pytest.raises(error, match=words):
        LearnedSpacing(**arguments)


def test_shapes_that_do_not_fit_are_refused():
    q, k, v = random_qkv(q_len=5, heads=3, kv_heads=2)
    with pytest.raises(ValueError, match="3 query heads and 2 key heads"):
        spacing()(q, k, v)
    q, k, v = random_qkv(q_len=5)
    with pytest.raises(TypeError, match="start must be an int32 or int64"):
        spacing()(q, k, v, start=torch.zeros(1, 5))
