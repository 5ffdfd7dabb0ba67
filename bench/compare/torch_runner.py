"""A rank of PyTorch over Gloo in bench:compare: torch.distributed.all_reduce in place.

Usage: torch_runner.py FOLDER BYTES_MAX LIBRARY, the last one being runner_library.c compiled.
"""

import ctypes
import os
import sys

import torch
import torch.distributed as dist


def main():
    rank, size = int(os.environ["LOCKSTEP_RANK"]), int(os.environ["LOCKSTEP_WORLD_SIZE"])
    library = ctypes.CDLL(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/rendezvous", rank=rank, world_size=size)
    tensors = {}  # by address and count: a tensor over the runner's memory costs microseconds to make

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    def allreduce(_, address, count):
        key = (address, count)
        if key not in tensors:
            tensors[key] = torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)
        dist.all_reduce(tensors[key])
        return 0

    words = (ctypes.c_char_p * len(sys.argv))(*map(os.fsencode, sys.argv))
    return library.lockstep_runner_library_serve(len(words), words, allreduce)


if __name__ == "__main__":
    sys.exit(main())
