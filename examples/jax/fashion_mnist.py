"""Trains a network on Fashion-MNIST by several processes. Lockstep averages their gradients inside the compiled step.

    python -m lockstep.run -n 2 --foreground 0 examples/jax/fashion_mnist.py --compare-gloo
"""
import argparse
import gzip
import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import lockstep.jax

parser = argparse.ArgumentParser()
parser.add_argument('--data', default='/usr/share/datasets/fashion-mnist', help="the folder of Debian's package dataset-fashion-mnist")
parser.add_argument('--steps', type=int, default=400)
parser.add_argument('--compare-gloo', action='store_true', help="also train with JAX's own collectives, over Gloo")
arguments = parser.parse_args()
communicator = lockstep.init()
tell = print if communicator.rank == 0 else lambda *_, **__: None
if arguments.compare_gloo:  # has to come before JAX computes anything
    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    jax.distributed.initialize(f'localhost:{os.environ["MASTER_PORT"]}', communicator.size, communicator.rank)


def read(name, offset):
    with gzip.open(f'{arguments.data}/{name}-ubyte.gz') as file:
        return np.frombuffer(file.read(), np.uint8, offset=offset)


def loss_of(parameters, x, y):
    for weight, bias in parameters[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    return -jax.nn.log_softmax(x @ parameters[-1][0] + parameters[-1][1])[jnp.arange(len(y)), y].mean()


def train(name, compiled, average, per_device):
    def step(parameters, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        return jax.tree.map(lambda value, gradient: value - 0.1 * gradient, parameters, average(gradients)), loss

    step, parameters, order, begin = compiled(step), per_device(initial), np.random.default_rng(communicator.rank), None
    for number in range(arguments.steps + 1):
        samples = order.integers(len(labels), size=64)
        parameters, loss = jax.block_until_ready(step(parameters, *per_device((images[samples] / np.float32(255), labels[samples]))))
        begin = begin or time.perf_counter()  # without the first step, which compiles
        if sys.stdout.isatty():
            tell(f'\r{name} [{"#" * (40 * number // arguments.steps):40}] {number}/{arguments.steps}', end='', flush=True)
    seconds = time.perf_counter() - begin
    lockstep.check_replicas(communicator, {str(i): np.array(leaf) for i, leaf in enumerate(jax.tree.leaves(parameters))})  # or DataLoss
    tell('\n' * sys.stdout.isatty() + f'{name}: {seconds:.2f} s, loss {np.mean(loss):.4f}; the replicas are equal')


images, labels = read('train-images-idx3', 16).reshape(-1, 784), read('train-labels-idx1', 8)
random, widths = np.random.default_rng(1), (784, 1024, 1024, 10)
initial = [(random.normal(size=(a, b), scale=a ** -0.5).astype('f'), np.zeros(b, 'f')) for a, b in zip(widths, widths[1:])]
reducer = lockstep.jax.make_reducer(initial, communicator)
train('Lockstep', jax.jit, lambda gradients: lockstep.jax.average_gradients(gradients, reducer)[0], lambda tree: tree)
if arguments.compare_gloo:
    train('Gloo    ', lambda step: jax.pmap(step, 'ranks'), lambda gradients: jax.lax.pmean(gradients, 'ranks'),
          lambda tree: jax.tree.map(lambda leaf: leaf[None], tree))
