"""`torch.ops.farspan.lines` keeps the contract of an operator: autograd, shapes without data, `torch.compile` (F23)."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from attention_probes import (
    PATTERNS,
    Results,
    assert_same,
    backends,
    differentiate,
    fast_backends,
    random_qkv,
    start_of,
    tolerance,
    widest,
)
from farspan import Lines, attention, patterns

pytestmark = pytest.mark.usefixtures("poisoned_memory")

FORMS = {
    "batch of two": lambda shape: torch.randn(shape),
    "permuted": lambda shape: torch.randn(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2),
    "transposed": lambda shape: torch.randn(shape[0], shape[1], shape[3], shape[2]).transpose(2, 3),
}


def operands(form, backend, start=None):
    support = Lines([[0, 1, 9], [0], [2], [0, 13]], verticals=[0])
    shapes = ((2, 4, 17, 8), (2, 2, 17, 8), (2, 2, 17, 6))
    q, k, v = (FORMS[form](shape).requires_grad_() for shape in shapes)
    return q, k, v, support.slash_table, support.vertical_table, None, start, 0.3, backend


@fast_backends
@pytest.mark.parametrize("form", FORMS)
def test_opcheck_of_the_forward(form, backend):
    start = start_of(7, 10).expand(2, -1) if form == "permuted" else None
    torch.library.opcheck(torch.ops.farspan.lines.default, operands(form, backend, start))


@fast_backends
@pytest.mark.parametrize("form", FORMS)
def test_opcheck_of_the_backward(form, backend):
    q, k, v, *others = (x.detach() if isinstance(x, torch.Tensor) else x for x in operands(form, backend))
    out, lse = torch.ops.farspan.lines(q, k, v, *others)
    grad_out, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    arguments = (grad_out, grad_lse, q, k, v, lse, *others)
    torch.library.opcheck(
        torch.ops.farspan.lines_backward.default, arguments, test_utils=("test_schema", "test_faketensor")
    )


@fast_backends
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_shapes_dtypes_and_strides_are_known_without_data(form, dtype, backend):
    if (backend, dtype) == ("cpu", torch.float64):
        pytest.skip("the kernels take no fp64")
    q, k, v, *others = operands(form, backend)
    real = torch.ops.farspan.lines(q.to(dtype), k.to(dtype), v.to(dtype), *others)
    meta = [x.detach().to(dtype).to("meta") for x in (q, k, v)]
    fake = torch.ops.farspan.lines(*meta, *others)
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


SMALL = {
    "pattern": (Lines([0, 1, 4], [0]), 6, 6, None),
    "cache": (Lines([0, 1, 4], [0, 2]), 2, 6, None),
    "more queries than keys": (Lines([0, 1]), 5, 3, None),
    "per head": (Lines([[0, 1], [2]]), 5, 5, None),
    "start": (Lines([0, 1, 3]), 6, 6, start_of(4, 2)),
    "far": (Lines([0, 30, 34]), 36, 36, None),
}


@pytest.mark.parametrize("backend", ["reference", "torch"])  # finite differences want fp64
@pytest.mark.parametrize(("support", "q_len", "k_len", "start"), SMALL.values(), ids=SMALL)
def test_gradcheck(backend, support, q_len, k_len, start):
    leaves = [x.requires_grad_() for x in random_qkv(q_len=q_len, k_len=k_len, head_dim=2, value_dim=3)]

    def call(q, k, v):
        out, lse = attention(q, k, v, support, start=start, return_lse=True, backend=backend)
        return out, lse.masked_fill(lse.isinf(), 0)

    assert torch.autograd.gradcheck(call, leaves, fast_mode=q_len > 10)


@backends
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)], ids=["q", "k", "v", "q v", "k v"])
def test_any_subset_of_inputs_can_be_differentiated(backend, wanted):
    inputs = random_qkv(heads=4, kv_heads=2, q_len=40, dtype=widest(backend))
    leaves = [x.clone().requires_grad_(n in wanted) for n, x in enumerate(inputs)]
    out = attention(*leaves, PATTERNS["fibonacci"], backend=backend)
    some = torch.autograd.grad(out.square().sum(), [leaves[n] for n in wanted])
    every = [x.clone().requires_grad_() for x in inputs]
    expected = torch.autograd.grad(attention(*every, PATTERNS["fibonacci"], backend=backend).square().sum(), every)
    for n, grad in zip(wanted, some, strict=True):
        assert torch.equal(grad, expected[n])


@fast_backends
@pytest.mark.parametrize("output", [0, 1], ids=["out alone", "lse alone"])
def test_either_output_can_be_differentiated_alone(backend, output):
    grads = []
    for name in (backend, "reference"):
        leaves = [x.to(widest(name)).requires_grad_() for x in random_qkv(q_len=20)]
        result = attention(*leaves, PATTERNS["window and sinks"], return_lse=True, backend=name)[output]
        grads.append(torch.autograd.grad(result.sin().sum(), leaves, materialize_grads=True))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a.double(), b, atol=tolerance(a.dtype), rtol=0)


@backends
def test_without_gradients_nothing_is_kept(backend):
    q, k, v = random_qkv(q_len=5, dtype=widest(backend))
    assert attention(q, k, v, Lines([0]), backend=backend).grad_fn is None
    q.requires_grad_()
    with torch.no_grad():
        assert attention(q, k, v, Lines([0]), backend=backend).grad_fn is None


@fast_backends
def test_second_derivatives_are_refused_and_not_wrong(backend):
    """Left to itself PyTorch warns and takes the first gradient for a constant."""
    leaves = [x.requires_grad_() for x in random_qkv(q_len=5, dtype=widest(backend))]
    out = attention(*leaves, Lines([0, 1]), backend=backend)
    (grad,) = torch.autograd.grad(out.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(NotImplementedError, match=r"differentiable once.*'reference'"):
        grad.square().sum().backward()


def test_the_reference_has_second_derivatives():
    leaves = [x.requires_grad_() for x in random_qkv(q_len=4, head_dim=2)]
    assert torch.autograd.gradgradcheck(lambda *x: attention(*x, Lines([0, 1]), backend="reference"), leaves)


def compiled_with(compiler, support, backend):
    counter = CompileCounterWithBackend(compiler)

    def call(q, k, v):
        return attention(q, k, v, support, return_lse=True, backend=backend)

    return torch.compile(call, fullgraph=True, backend=counter), call, counter


def results(function, length) -> Results:
    return differentiate(function, *random_qkv(batch=2, heads=4, kv_heads=2, q_len=length, dtype=torch.float32))


@fast_backends
@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_compiled_is_eager_forward_and_backward(compiler, backend):
    compiled, eager, _ = compiled_with(compiler, patterns.fibonacci(9), backend)
    for length in (128, 196, 256, 257):
        assert_same(results(compiled, length), results(eager, length))


@fast_backends
def test_compiled_with_start_and_a_cache_is_eager(backend):
    def call(q, k, v, start):
        return attention(q, k, v, PATTERNS["slashes and verticals"], start=start, backend=backend)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for q_len, k_len in ((3, 90), (5, 91), (1, 92)):
        q, k, v = random_qkv(batch=2, q_len=q_len, k_len=k_len, dtype=widest(backend))
        start = torch.tensor([[0], [40]]).expand(2, q_len)
        assert torch.equal(compiled(q, k, v, start), call(q, k, v, start))


@fast_backends
def test_twenty_lengths_need_a_handful_of_compilations(backend):
    compiled, _, counter = compiled_with("aot_eager", patterns.fibonacci(9), backend)
    for length in range(30, 130, 5):
        results(compiled, length)
    assert counter.frame_count <= 3


@fast_backends
def test_a_compiled_model_takes_any_of_its_layers_supports(backend):
    """Layers differ in alpha: the compiled block must not answer with the first layer's lines."""

    def call(q, k, v, support):
        return attention(q, k, v, support, backend=backend)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    q, k, v = random_qkv(q_len=60, dtype=widest(backend))
    for alpha in patterns.schedules.stagger(4):
        support = patterns.fibonacci(3, alpha)
        assert torch.equal(compiled(q, k, v, support), call(q, k, v, support))
