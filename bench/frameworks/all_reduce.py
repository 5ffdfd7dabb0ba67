"""torch.distributed.all_reduce over Lockstep beside Gloo, in the same processes, by turns.

    python -m lockstep.run -n 2 bench/frameworks/all_reduce.py [--rounds 21] [--json FILE]

A row for each size: medians over rounds of the time of one call, and the median of the rounds' ratios.
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist

SIZES = (8, 4 << 10, 64 << 10, 1 << 20, 25 << 20)


def seconds_of_a_call(tensor, group, calls):
    dist.barrier(group)
    begin = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor, group=group)
    return (time.perf_counter() - begin) / calls


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument('--rounds', type=int, default=21)
    arguments.add_argument('--json', metavar='FILE', help='write the medians in us, for bench/old_and_new.py')
    given = arguments.parse_args()
    rounds, rows = given.rounds, []
    torch.set_num_threads(1)
    dist.init_process_group('gloo')
    groups = {name: dist.new_group(backend=name) for name in ('gloo', 'lockstep')}
    if dist.get_rank() == 0:
        print(f'{dist.get_world_size()} ranks, torch {torch.__version__}, {rounds} rounds; us a call')
        print(f'{"bytes":>10} {"gloo":>10} {"lockstep":>10} {"ratio":>7}')
    for size in SIZES:
        tensor = torch.ones(size // 4)
        calls = max(3, min(200, (8 << 20) // size))
        times = {name: [] for name in groups}
        for name, group in groups.items():
            seconds_of_a_call(tensor, group, calls)
        for _ in range(rounds):
            for name, group in groups.items():
                tensor.fill_(1)
                times[name].append(seconds_of_a_call(tensor, group, calls))
        if dist.get_rank() == 0:
            ratio = statistics.median(ours / theirs for ours, theirs in zip(times['lockstep'], times['gloo']))
            medians = ' '.join(f'{statistics.median(times[name]) * 1e6:>10.1f}' for name in groups)
            print(f'{size:>10} {medians} {ratio:>7.3f}')
            rows.append({'bytes': size, **{f'{name}_us': statistics.median(times[name]) * 1e6 for name in groups}})
    if given.json and dist.get_rank() == 0:
        with open(given.json, 'w', encoding='utf-8') as file:
            json.dump({'rows': rows}, file)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
