"""The C++ core works on torch's own threads: as many as torch says, no others, each piece of work once."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

import core_probes
from farspan import _cpu

core, why = _cpu.load_core()
pytestmark = pytest.mark.skipif(core is None, reason=str(why))
needs_pool = pytest.mark.skipif(not all(_cpu.torch_pool()), reason="this torch does not lend its threads")
needs_fork = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")

# A process that waits for threads which are not there would wait for ever. Importing farspan takes seconds.
PATIENCE = 120


@pytest.fixture(autouse=True)
def torch_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def other_pool():
    yield core.use_torch_pool
    core.use_torch_pool(*_cpu.torch_pool())


def use_torchs_threads():
    """So that torch has started its threads and a fork loses them."""
    torch.ones(1 << 20).add_(1)


@needs_pool
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_uses_as_many_threads_as_torch_says(threads):
    torch.set_num_threads(threads)
    assert core.available_threads() == threads
    assert core.parallel_self_test(threads) == ([1] * threads, threads)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 1, 2, 3, 7, 64])
def test_every_worker_runs_exactly_once(workers, threads):
    torch.set_num_threads(threads)
    runs, _ = core.parallel_self_test(workers)
    assert runs == [1] * workers


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_worker_of_a_run_inside_another_runs_exactly_once(workers):
    torch.set_num_threads(2)
    runs, threads = core.parallel_self_test(workers, nested=3)
    assert runs == [1] * (3 * workers)
    assert threads <= 2


@needs_pool
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_starts_no_thread_beside_torchs():
    torch.set_num_threads(3)
    use_torchs_threads()
    threads = set(Path("/proc/self/task").iterdir())
    assert core.parallel_self_test(3) == ([1] * 3, 3)
    assert set(Path("/proc/self/task").iterdir()) <= threads


def test_without_a_pool_it_works_on_the_calling_thread(other_pool):
    other_pool(0, 0)
    torch.set_num_threads(2)
    assert core.available_threads() == 1
    assert core.parallel_self_test(5) == ([1] * 5, 1)


@pytest.mark.parametrize("run_before_failing", [0, 2, 5])
def test_a_pool_that_fails_leaves_nothing_undone_and_nothing_done_twice(other_pool, run_before_failing):
    body = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, body, ctypes.c_void_p)
    def parallel_for(begin, end, grain_size, run, context):
        run(begin, begin + run_before_failing, context)
        return 1

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_uint32))
    def get_num_threads(threads):
        return 1

    other_pool(*(ctypes.cast(function, ctypes.c_void_p).value for function in (parallel_for, get_num_threads)))
    assert core.available_threads() == 1
    assert core.parallel_self_test(5) == ([1] * 5, 1)


@needs_fork
def test_a_forked_child_works_alone_instead_of_waiting_for_its_parents_threads():
    torch.set_num_threads(2)
    use_torchs_threads()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(core_probes.threads_and_runs()))
    child.start()
    answered = receiver.poll(PATIENCE)
    child.kill()
    child.join()
    assert answered, "the child hangs"
    assert receiver.recv() == (1, [1, 1, 1])


@needs_pool
@pytest.mark.parametrize(("method", "threads"), [pytest.param("fork", 1, marks=needs_fork), ("spawn", 2)])
def test_works_in_the_workers_of_a_data_loader(method, threads):
    torch.set_num_threads(2)
    use_torchs_threads()
    loader = torch.utils.data.DataLoader(
        range(2),
        batch_size=None,
        num_workers=1,
        collate_fn=core_probes.threads_and_runs,
        multiprocessing_context=method,
        timeout=PATIENCE,
    )
    assert list(loader) == [(threads, [1, 1, 1])] * 2


@needs_fork
def test_a_forked_child_computes_attention_after_its_parent_has():
    """A bare fork, as some servers do: alone, and to the same bits. The child tells by its exit code."""
    expected = core_probes.lines_and_gradients()
    child = os.fork()
    if child == 0:
        try:
            found = core_probes.lines_and_gradients()
            torch.set_num_threads(1)  # torch's own operations would wait for the parent's threads
            os._exit(0 if all(map(torch.equal, found, expected)) else 1)
        finally:
            os._exit(2)
    deadline = time.monotonic() + PATIENCE
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended != (0, 0), "the child hangs"
    assert os.waitstatus_to_exitcode(ended[1]) == 0


@needs_fork
def test_workers_of_a_data_loader_compute_attention_after_their_parent_has():
    expected = core_probes.lines_and_gradients()
    loader = torch.utils.data.DataLoader(
        range(2),
        batch_size=None,
        num_workers=2,
        collate_fn=core_probes.lines_and_gradients,
        multiprocessing_context="fork",
        timeout=PATIENCE,
    )
    for found in loader:
        assert all(map(torch.equal, found, expected))
