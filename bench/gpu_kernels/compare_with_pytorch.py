#!/usr/bin/env python3
"""Flatten and unflatten beside what PyTorch has for the same lists of gradients, in one run.

    LD_LIBRARY_PATH=<Abseil's libraries> python3 compare_with_pytorch.py <libgpu_kernels_comparison.so>

The peers are torch._foreach_copy_, torch._foreach_mul (which writes new tensors) and what DistributedDataParallel's
reducer does: for each gradient one torch.mul(gradient, factor, out=its view of the flat tensor) or, back, one
view.copy_(). Everything is checked against each other first. Candidates take turns in every round; a time is the median
over the rounds of CUDA's time between two events, with the stream kept busy beforehand so that launches are enqueued
when the first event comes: the host's time, which PyTorch needs more of, is shown apart. Exits with 77 without PyTorch
or a GPU.
"""

import argparse
import ctypes
import statistics
import sys
import time

SKIPPED = 77
F16, BF16, F32 = 7, 8, 9  # base/types/dtype.h
FACTOR = 0.125  # of an average over 8 ranks; exact, so that results can be compared bit by bit
SLEEP_CYCLES = 20_000_000  # about 10 ms: longer than any candidate needs to be enqueued


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.lockstep_bench_model.restype = ctypes.c_int64
        self.c.lockstep_bench_list_create.restype = ctypes.c_char_p
        for name in ("flatten", "unflatten"):
            function = getattr(self.c, "lockstep_bench_" + name)
            function.restype = ctypes.c_char_p
            function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_double]
        self.c.lockstep_bench_list_destroy.argtypes = [ctypes.c_void_p]

    def model(self, name):
        size = self.c.lockstep_bench_model(name.encode(), None, ctypes.c_int64(0))
        if size < 0:
            sys.exit(f"no model {name}")
        counts = (ctypes.c_int64 * size)()
        self.c.lockstep_bench_model(name.encode(), counts, ctypes.c_int64(size))
        return list(counts)

    def list(self, tensors, stream):
        size = len(tensors)
        data = (ctypes.c_void_p * size)(*[t.data_ptr() for t in tensors])
        counts = (ctypes.c_int64 * size)(*[t.numel() for t in tensors])
        made = ctypes.c_void_p()
        check(self.c.lockstep_bench_list_create(data, counts, ctypes.c_int64(size), 0,
                                                ctypes.c_void_p(stream.cuda_stream), ctypes.byref(made)))
        return made


def check(error):
    if error is not None:
        sys.exit(error.decode())


def measure(torch, candidates, rounds):
    """{name: (median ms on the device, median ms of the call)}"""
    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    device = {name: [] for name, _ in candidates}
    host = {name: [] for name, _ in candidates}
    for turn in range(-2, rounds):
        for i in range(len(candidates)):
            name, run = candidates[(i + turn) % len(candidates)]
            torch.cuda._sleep(SLEEP_CYCLES)
            begin.record()
            before = time.perf_counter()
            run()
            call_ms = 1000 * (time.perf_counter() - before)
            end.record()
            end.synchronize()
            if turn >= 0:
                device[name].append(begin.elapsed_time(end))
                host[name].append(call_ms)
    return {name: (statistics.median(device[name]), statistics.median(host[name])) for name, _ in candidates}


def report(title, ours, measured, bytes_moved):
    print(f"\n{title}")
    print(f"  {'':44} {'us':>9} {'GB/s':>8} {'to ours':>8} {'host us':>9}")
    for name, (ms, host_ms) in measured.items():
        ratio = ms / measured[ours][0]
        print(f"  {name:44} {1000 * ms:9.1f} {bytes_moved / ms / 1e6:8.1f} {ratio:8.2f} {1000 * host_ms:9.1f}")


def compare(torch, library, name, sizes, label, rounds):
    stream = torch.cuda.current_stream()
    grads = [torch.randn(size, device="cuda") for size in sizes]
    total = sum(sizes)
    ours = library.list(grads, stream)
    print(f"\n== {name}, {label}: {len(grads)} tensors, {4 * total / 1e6:.0f} MB in f32")

    def views_of(flat):
        return list(torch.split(flat, sizes))

    def flatten(flat, dtype, factor):
        return lambda: check(library.c.lockstep_bench_flatten(ours, flat.data_ptr(), dtype, factor))

    def unflatten(flat, dtype, factor):
        return lambda: check(library.c.lockstep_bench_unflatten(ours, flat.data_ptr(), dtype, factor))

    def each_mul(views):
        def run():
            for view, grad in zip(views, grads):
                torch.mul(grad, FACTOR, out=view)
        return run

    def each_copy(targets, sources):
        def run():
            for target, source in zip(targets, sources):
                target.copy_(source)
        return run

    # f32 to f32.
    flat = torch.empty(total, device="cuda")
    views = views_of(flat)
    expected = torch.cat(grads)
    flatten(flat, F32, 1)()
    assert torch.equal(flat, expected), "flatten"
    flatten(flat, F32, FACTOR)()
    assert torch.equal(flat, expected * FACTOR), "flatten scaled"
    report("flatten f32, scaled", "Lockstep", measure(torch, [
        ("Lockstep", flatten(flat, F32, FACTOR)),
        ("reducer: torch.mul(out=view) for each", each_mul(views)),
        ("torch._foreach_mul, new tensors", lambda: torch._foreach_mul(grads, FACTOR)),
        ("torch._foreach_copy_, then flat.mul_", lambda: (torch._foreach_copy_(views, grads), flat.mul_(FACTOR))),
    ], rounds), 8 * total)
    report("flatten f32, copied", "Lockstep", measure(torch, [
        ("Lockstep", flatten(flat, F32, 1)),
        ("torch._foreach_copy_", lambda: torch._foreach_copy_(views, grads)),
        ("view.copy_ for each", each_copy(views, grads)),
    ], rounds), 8 * total)
    report("unflatten f32, copied", "Lockstep", measure(torch, [
        ("Lockstep", unflatten(flat, F32, 1)),
        ("torch._foreach_copy_", lambda: torch._foreach_copy_(grads, views)),
        ("reducer: grad.copy_(view) for each", each_copy(grads, views)),
    ], rounds), 8 * total)

    for torch_dtype, dtype, text in ((torch.bfloat16, BF16, "bf16"), (torch.float16, F16, "f16")):
        narrow = torch.empty(total, device="cuda", dtype=torch_dtype)
        narrow_views = views_of(narrow)
        flatten(narrow, dtype, 1)()
        assert torch.equal(narrow, torch.cat(grads).to(torch_dtype)), "flatten to " + text
        report(f"flatten f32 to {text}", "Lockstep, scaled", measure(torch, [
            ("Lockstep, scaled", flatten(narrow, dtype, FACTOR)),
            ("Lockstep, not scaled", flatten(narrow, dtype, 1)),
            ("torch._foreach_copy_, not scaled", lambda: torch._foreach_copy_(narrow_views, grads)),
            ("view.copy_ for each, not scaled", each_copy(narrow_views, grads)),
        ], rounds), 6 * total)
        unflatten(narrow, dtype, 1)()
        assert torch.equal(torch.cat(grads), narrow.float()), "unflatten from " + text
        report(f"unflatten {text} to f32", "Lockstep, scaled", measure(torch, [
            ("Lockstep, scaled", unflatten(narrow, dtype, FACTOR)),
            ("Lockstep, not scaled", unflatten(narrow, dtype, 1)),
            ("torch._foreach_copy_, not scaled", lambda: torch._foreach_copy_(grads, narrow_views)),
            ("grad.copy_(view) for each, not scaled", each_copy(grads, narrow_views)),
        ], rounds), 6 * total)
        del narrow, narrow_views
    torch.cuda.synchronize()
    library.c.lockstep_bench_list_destroy(ours)


def bucket_of(counts, mib):
    """The first bucket of the backward's order."""
    sizes = []
    for count in reversed(counts):
        sizes.append(count)
        if 4 * sum(sizes) >= mib << 20:
            break
    return sizes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libgpu_kernels_comparison.so")
    parser.add_argument("--models", nargs="*", default=["resnet50", "bert_large"])
    parser.add_argument("--list_mb", type=int, default=512, help="of f32 at least: the list is repeated as often")
    parser.add_argument("--bucket_mib", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("no PyTorch")
        return SKIPPED
    if not torch.cuda.is_available():
        print("PyTorch finds no GPU")
        return SKIPPED
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
    library = Library(options.library)
    for name in options.models:
        counts = library.model(name)
        repeats = -(-1_000_000 * options.list_mb // (4 * sum(counts)))
        compare(torch, library, name, repeats * counts, f"the list {repeats} times", options.rounds)
        compare(torch, library, name, bucket_of(counts, options.bucket_mib), f"a bucket of {options.bucket_mib} MiB",
                options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
