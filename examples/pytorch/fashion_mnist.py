"""Trains a network on Fashion-MNIST in several processes. Lockstep averages their gradients while they are computed.

    python -m lockstep.run -n 2 --foreground 0 examples/pytorch/fashion_mnist.py
    torchrun --nproc-per-node 2 examples/pytorch/fashion_mnist.py --compare-gloo
"""
import argparse
import gzip
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional

import lockstep.torch

parser = argparse.ArgumentParser()
parser.add_argument('--data', default='/usr/share/datasets/fashion-mnist', help="the folder of Debian's package dataset-fashion-mnist")
parser.add_argument('--steps', type=int, default=400)
parser.add_argument('--compare-gloo', action='store_true', help="also train by PyTorch's DistributedDataParallel over Gloo")
arguments = parser.parse_args()


def read(name, offset, shape):
    with gzip.open(f'{arguments.data}/{name}-ubyte.gz') as file:
        return torch.tensor(np.frombuffer(file.read(), np.uint8, offset=offset).reshape(shape))


def train(name, wrap):
    torch.manual_seed(1)
    model = wrap(torch.nn.Sequential(torch.nn.Linear(784, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    shuffle = torch.Generator().manual_seed(rank)
    began = time.perf_counter()
    for step in range(1, arguments.steps + 1):
        batch = torch.randint(len(images), (64,), generator=shuffle)
        loss = functional.cross_entropy(model(images[batch].float() / 255), labels[batch].long())
        optimizer.zero_grad()
        loss.backward()  # the gradients are averages now
        optimizer.step()
        if rank == 0 and sys.stdout.isatty():
            print(f'\r{name} [{"#" * (40 * step // arguments.steps):40}] {step}, loss {loss.item():.3f}', end='', flush=True)
    seconds = time.perf_counter() - began
    with torch.no_grad():
        accuracy = (model(test_images.float() / 255).argmax(1) == test_labels).float().mean()
    lockstep.torch.check_replicas(model, optimizer)  # raises lockstep.DataLoss if any rank's differ
    if rank == 0:
        print('\n' * sys.stdout.isatty() + f'{name}: {seconds:.2f} s, {64 * world * arguments.steps / seconds:,.0f} images/s, '
              f'test accuracy {accuracy:.2%}; the replicas are equal')


dist.init_process_group('lockstep')
rank, world = dist.get_rank(), dist.get_world_size()
images, labels = read('train-images-idx3', 16, (-1, 784)), read('train-labels-idx1', 8, -1)
test_images, test_labels = read('t10k-images-idx3', 16, (-1, 784)), read('t10k-labels-idx1', 8, -1)
train('Lockstep', lockstep.torch.DistributedDataParallel)
if arguments.compare_gloo:
    gloo = dist.new_group(backend='gloo')
    train('Gloo', lambda model: torch.nn.parallel.DistributedDataParallel(model, process_group=gloo))
dist.destroy_process_group()
