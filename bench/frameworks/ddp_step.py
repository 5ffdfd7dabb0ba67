#!/usr/bin/env python3
"""What a data-parallel training step costs in PyTorch: torch's DistributedDataParallel over Gloo and over Lockstep's back end, Lockstep's
DistributedDataParallel by default, with copies in buckets, with bucket views and with preserve_gradients, and a step without communication.

    python bench/frameworks/ddp_step.py [--ranks 2] [--steps 30] [--batch N] [--quick] [--svg FILE] [--json FILE] [--profile VARIANT]
        [mlp resnet18 resnet50 bert]

One run: the same processes take one step of each variant in turn, in an order that rotates, so that whatever else the machine does hits
all alike. A step is forward, backward, SGD and zero_grad, behind a barrier; its time is that of the slowest rank. Prints for each model
and variant the median step, the median of its exposed communication (the step minus the step without communication of the same round), and
the medians of both as ratios to torch's over Gloo of the same round. Then the time that rank 0 spends in a step of `lockstep` on comparing
replicas, by its own count.
"""

import argparse
import copy
import cProfile
import json
import os
import pstats
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchDDP

import lockstep.run
import models
import step_chart
from lockstep.torch import DistributedDataParallel

GLOO, NONE = 'torch, gloo', step_chart.NONE


def classes_of(outputs):
    return torch.zeros(outputs.shape[0], dtype=torch.int64)


MODELS = {  # how it is made, a batch of inputs, and how many
    'mlp': (models.mlp, lambda batch: torch.randn(batch, 2000), 64),
    'resnet18': (models.resnet18, lambda batch: torch.randn(batch, 3, 112, 112), 4),
    'resnet50': (models.resnet50, lambda batch: torch.randn(batch, 3, 112, 112), 4),
    'bert': (models.Bert, lambda batch: torch.randint(0, 30522, (batch, 32)), 2),
}


def variants(gloo):
    """What wraps a module, and whether zero_grad keeps the gradients' memory."""
    return {
        GLOO: (lambda module: TorchDDP(module, process_group=gloo), True),
        'torch, lockstep': (TorchDDP, True),
        'lockstep': (DistributedDataParallel, True),
        'lockstep, copied': (lambda module: DistributedDataParallel(module, gradient_memory='copied'), True),
        'lockstep, views': (lambda module: DistributedDataParallel(module, gradient_as_bucket_view=True), False),
        'lockstep, preserved': (lambda module: DistributedDataParallel(module, preserve_gradients=True), True),
        NONE: (lambda module: module, True),
    }


class Trainer:
    """A module with its optimizer, which takes a step."""

    def __init__(self, module, set_to_none):
        self.module, self.set_to_none = module, set_to_none
        self.optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)

    def step(self, x):
        outputs = self.module(x)
        torch.nn.functional.cross_entropy(outputs, classes_of(outputs)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.set_to_none)


def twin(module):
    """A copy that shares the parameters' memory: six models of BERT's size need not fit."""
    made = copy.deepcopy(module)
    for mine, its in zip(made.parameters(), module.parameters()):
        mine.data = its.data
    return made


def timed(step, communicator):
    """Milliseconds, of the slowest rank."""
    communicator.barrier()
    begin = time.perf_counter()
    step()
    longest = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
    communicator.all_reduce(longest, op=lockstep.MAX)
    return 1000 * longest.item()


def measure(name, steps, batch, gloo, communicator, profiled):
    make, inputs, usual_batch = MODELS[name]
    torch.manual_seed(1)
    module, x = make(), inputs(batch or usual_batch)
    trainers = {variant: Trainer(wrap(twin(module)), set_to_none) for variant, (wrap, set_to_none) in variants(gloo).items()}
    if profiled:
        return profile(trainers[profiled], x, steps)
    order, times, compared = list(trainers), {variant: [] for variant in trainers}, []
    for round_number in range(steps + 3):  # torch rebuilds buckets in the second step
        for variant in order:
            took = timed(lambda: trainers[variant].step(x), communicator)
            if round_number >= 3:
                times[variant].append(took)
        compared.append(comparing(trainers['lockstep'].module))
        order = order[1:] + order[:1]
    if communicator.rank == 0:
        report(f'{name}, batches of {len(x)}', module, times)
        share = statistics.mean(compared) / statistics.mean(times['lockstep'])
        print(f'comparing replicas: {statistics.mean(compared):.3f} ms in a step, {share:.2%}')
    return {variant: statistics.median(of_variant) for variant, of_variant in times.items()}


def comparing(wrapper):
    """Milliseconds that this rank's last step took to compare replicas: the library's count, and finding the parameters again."""
    begin = time.perf_counter()
    wrapper._averager._replicas.addresses()
    return wrapper._averager.reducer.statistics()['replicas_ms'] + 1000 * (time.perf_counter() - begin)


def report(name, module, times):
    parameters = list(module.parameters())
    megabytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters) / 1e6
    print(f'\n{name}: {len(parameters)} parameters, {megabytes:.0f} MB; {len(times[GLOO])} rounds, medians')
    print(f'{"":18} {"step ms":>9} {"exposed ms":>11} {"step / gloo":>12} {"exposed / gloo":>15}')
    exposed = {variant: [mine - none for mine, none in zip(all_of_them, times[NONE])] for variant, all_of_them in times.items()}

    def ratio(mine, others):
        return statistics.median(one / other for one, other in zip(mine, others) if other > 0)
    for variant in times:
        part = '' if variant == NONE else f' {statistics.median(exposed[variant]):11.1f} {ratio(times[variant], times[GLOO]):12.3f} ' \
                                          f'{ratio(exposed[variant], exposed[GLOO]):15.3f}'
        print(f'{variant:18} {statistics.median(times[variant]):9.1f}{part}', flush=True)


def profile(trainer, x, steps):
    for _ in range(3):
        trainer.step(x)
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(steps):
        trainer.step(x)
    profiler.disable()
    if dist.get_rank() == 0:
        pstats.Stats(profiler).sort_stats('tottime').print_stats(25)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('models', nargs='*', default=['mlp', 'resnet18', 'bert'], metavar='MODEL', help=', '.join(MODELS))
    parser.add_argument('--ranks', type=int, default=2)
    parser.add_argument('--steps', type=int, default=30, help='rounds that count')
    parser.add_argument('--batch', type=int, help='inputs of a step and rank, which set what it computes; default: by the model')
    parser.add_argument('--quick', action='store_true', help='5 rounds')
    parser.add_argument('--svg', metavar='FILE', help='draw the medians into this file')
    parser.add_argument('--json', metavar='FILE', help='write the medians in ms, for bench/old_and_new.py')
    parser.add_argument('--profile', metavar='VARIANT', help="only this variant, under Python's profiler")
    arguments = parser.parse_args()
    if 'LOCKSTEP_RANK' not in os.environ:
        os.environ.setdefault('OMP_NUM_THREADS', '1')
        os.execv(lockstep.run.launcher(), ['lockstep-run', '-n', str(arguments.ranks), '--foreground', '0', sys.executable, *sys.argv])
    torch.set_num_threads(int(os.environ.get('OMP_NUM_THREADS', 1)))
    dist.init_process_group('lockstep')
    gloo, communicator = dist.new_group(backend='gloo'), lockstep.init()
    if communicator.rank == 0:
        print(f'PyTorch {torch.__version__}, Lockstep {lockstep.__version__}, {arguments.ranks} ranks, {os.cpu_count()} cores')
    medians = {name: measure(name, 5 if arguments.quick else arguments.steps, arguments.batch, gloo, communicator, arguments.profile)
               for name in arguments.models}
    if arguments.json and communicator.rank == 0:
        rows = [{'name': f'{name}: {variant}', 'step_ms': median} for name, of in medians.items() for variant, median in of.items()]
        with open(arguments.json, 'w', encoding='utf-8') as file:
            json.dump({'rows': rows}, file)
    if arguments.svg and communicator.rank == 0:
        caption = f'PyTorch {torch.__version__}, {arguments.ranks} processes, {os.cpu_count()} cores.'
        with open(arguments.svg, 'w', encoding='utf-8') as file:
            file.write(step_chart.draw(medians, caption))


if __name__ == '__main__':
    main()
