#!/usr/bin/env python3
"""What PyTorch takes for the copies that gpu_kernels times. Gradients, buckets, events and columns are the same, so that the two tables can
be laid side by side.

PyTorch's ways are torch._foreach_copy_, torch._foreach_mul (which writes new tensors), and what DistributedDataParallel's reducer does:
for each gradient one torch.mul(gradient, factor, out=its view of the bucket) or, back, one gradient.copy_(view). Exits with 77 without
PyTorch or a GPU.
"""

import statistics
import sys
import time

FACTOR = 0.125  # of an average over 8 ranks
SLEEP_CYCLES = 40_000_000  # about 20 ms: longer than anything here needs to be enqueued
WARMUPS, REPETITIONS = 3, 31
COPY_BYTES, LIST_BYTES, BUCKET_BYTES = 1 << 30, 512_000_000, 25 << 20


def resnet50():
    """The elements of each parameter, in the order of bench/model.cc."""
    sizes, inputs = [64 * 3 * 49, 64, 64], 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            sizes += [inputs * width, width, width, 9 * width * width, width, width, 4 * width * width, 4 * width, 4 * width]
            sizes += [4 * width * inputs, 4 * width, 4 * width] if block == 0 else []
            inputs = 4 * width
    return sizes + [1000 * inputs, 1000]


def bert_large(width=1024):
    layer = 4 * [width * width, width] + [width, width, 4 * width * width, 4 * width, 4 * width * width, width, width, width]
    return [30522 * width, 512 * width, 2 * width, width, width] + 24 * layer + [width * width, width]


# What is run on gradients, their views of a flat tensor, and that tensor; and the dtypes of the flat tensor.
F32, ALL = ('float32',), ('float32', 'bfloat16', 'float16')
WAYS = (
    ('flatten scaled, mul(out=view) for each', F32, lambda grads, views, flat: [torch.mul(g, FACTOR, out=v) for g, v in zip(grads, views)]),
    ('flatten scaled, _foreach_mul, new tensors', F32, lambda grads, views, flat: torch._foreach_mul(grads, FACTOR)),
    ('flatten scaled, _foreach_copy_, flat.mul_', F32, lambda grads, views, flat: (torch._foreach_copy_(views, grads), flat.mul_(FACTOR))),
    ('flatten, _foreach_copy_', ALL, lambda grads, views, flat: torch._foreach_copy_(views, grads)),
    ('flatten, view.copy_ for each', ALL, lambda grads, views, flat: [v.copy_(g) for g, v in zip(grads, views)]),
    ('unflatten, _foreach_copy_', ALL, lambda grads, views, flat: torch._foreach_copy_(grads, views)),
    ('unflatten, grad.copy_ for each', ALL, lambda grads, views, flat: [g.copy_(v) for g, v in zip(grads, views)]))


def timed(work):
    """Medians of the microseconds on the device and of the call. The stream is kept busy until everything is enqueued."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    device, host = [], []
    for i in range(-WARMUPS, REPETITIONS):
        torch.cuda._sleep(SLEEP_CYCLES)
        begin.record()
        before = time.perf_counter()
        work(max(i, 0))
        host.append(1e6 * (time.perf_counter() - before))
        end.record()
        end.synchronize()
        device.append(1e3 * begin.elapsed_time(end))
    return statistics.median(device[WARMUPS:]), statistics.median(host[WARMUPS:])


def measure(model, copied):
    sizes = model()[::-1]
    sizes *= -(-LIST_BYTES // (4 * sum(sizes)))
    grads = [torch.randn(size, device='cuda') for size in sizes]
    begins, elements = [0], 0
    for i, size in enumerate(sizes, 1):
        elements += size
        if 4 * elements >= BUCKET_BYTES or i == len(sizes):
            begins.append(i)
            elements = 0
    print(f'\n{model.__name__}: {len(grads)} gradients, {4 * sum(sizes) / 1e6:.0f} MB in f32, {len(begins) - 1} buckets')
    print(f'{"":52} {"us":>9} {"GB/s":>9} {"of copy":>7} {"host us":>9} | {"bucket us":>9} {"host us":>9}')
    for name, dtypes, run in WAYS:
        for dtype in dtypes:
            flat = torch.empty(sum(sizes), device='cuda', dtype=getattr(torch, dtype))

            def lists(begin, end, flat=flat):
                part = flat[:sum(sizes[begin:end])]
                return grads[begin:end], list(part.split(sizes[begin:end])), part
            whole, buckets = lists(0, len(sizes)), [lists(*ends) for ends in zip(begins, begins[1:])]
            us, host_us = timed(lambda _: run(*whole))
            # One bucket after the other, so that each is read from memory.
            bucket_us, bucket_host_us = timed(lambda i: run(*buckets[i % len(buckets)]))
            bandwidth = sum(sizes) * (4 + flat.element_size()) / us
            print(f'{name + ", " + dtype:52} {us:9.1f} {bandwidth / 1e3:9.1f} {100 * bandwidth / copied:6.1f}% {host_us:9.1f} | '
                  f'{bucket_us:9.2f} {bucket_host_us:9.2f}')


def main():
    if not torch.cuda.is_available():
        sys.exit(print('PyTorch finds no GPU') or 77)
    source, target = (torch.zeros(COPY_BYTES, dtype=torch.uint8, device='cuda') for _ in range(2))
    us, _ = timed(lambda _: target.copy_(source))
    rate = 2 * COPY_BYTES / us / 1e3
    print(f'{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; a copy of 1 GiB: {us:.1f} us, {rate:.1f} GB/s')
    for model in (resnet50, bert_large):
        measure(model, 2 * COPY_BYTES / us)


if __name__ == '__main__':
    try:
        import torch
    except ImportError:
        sys.exit(print('no PyTorch') or 77)
    main()
