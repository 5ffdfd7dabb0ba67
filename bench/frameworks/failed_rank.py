#!/usr/bin/env python3
"""How long survivors take to name a rank that was killed.

    python bench/frameworks/failed_rank.py [--ranks 4] [--rounds 50]

In each round the ranks all-reduce 1 MiB again and again, and one of them, another in each round, is killed with SIGKILL. Each survivor's
time runs from the kill to the exception of its all-reduce. Prints the times' median, 90th percentile and maximum, and how many survivors
named the rank.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import lockstep


def rank_process():
    communicator = lockstep.init()
    gradient = bytearray(1 << 20)
    print('ready', flush=True)
    try:
        while True:
            communicator.all_reduce(memoryview(gradient).cast('f'))
    except lockstep.Error as error:
        print(json.dumps([time.monotonic(), error.failed_rank]), flush=True)
    os._exit(0)


def round_of(ranks, victim):
    """[(milliseconds, the rank that it named)] of each survivor."""
    with tempfile.TemporaryDirectory() as folder:
        common = {**os.environ, 'LOCKSTEP_STORE': f'file://{folder}/store', 'LOCKSTEP_WORLD_SIZE': str(ranks),
                  'LOCKSTEP_REPORT_FOLDER': folder}
        with open(f'{folder}/errors', 'w+', encoding='utf-8') as errors:
            processes = [subprocess.Popen([sys.executable, __file__, '--as-rank'], stdout=subprocess.PIPE, stderr=errors, text=True,
                                          env={**common, 'LOCKSTEP_RANK': str(rank)}) for rank in range(ranks)]
            for process in processes:
                if process.stdout.readline() != 'ready\n':
                    errors.seek(0)
                    sys.exit(errors.read())
        time.sleep(0.2)  # in the middle of their calls
        killed = time.monotonic()
        processes[victim].send_signal(signal.SIGKILL)
        answers = [json.loads(process.communicate(timeout=60)[0]) for rank, process in enumerate(processes) if rank != victim]
        processes[victim].communicate()
        return [(1000 * (at - killed), named) for at, named in answers]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--ranks', type=int, default=4)
    parser.add_argument('--rounds', type=int, default=50)
    parser.add_argument('--as-rank', action='store_true', help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_rank:
        rank_process()
    times, right = [], 0
    for number in range(arguments.rounds):
        victim = number % arguments.ranks
        for milliseconds, named in round_of(arguments.ranks, victim):
            times.append(milliseconds)
            right += named == victim
    times.sort()
    print(f'Lockstep {lockstep.__version__}, {arguments.ranks} ranks, {arguments.rounds} rounds: {right} of {len(times)} survivors named '
          f'the rank that was killed, after {statistics.median(times):.1f} ms (median), {times[len(times) * 9 // 10]:.1f} ms (90 %), '
          f'{times[-1]:.1f} ms (maximum)')


if __name__ == '__main__':
    main()
