"""A rank of PyTorch over Gloo in bench:compare: torch.distributed.all_reduce in place.

Usage: torch_runner.py FOLDER BYTES_MAX RANK SIZE LIBRARY, the last one being runner_library.c compiled.
"""

import ctypes
import sys

import torch
import torch.distributed as dist


def main():
    folder, bytes_max, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    library = ctypes.CDLL(sys.argv[5])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    tensors = {}  # by address and count: a tensor over the runner's memory costs microseconds to make

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    def allreduce(_, address, count):
        key = (address, count)
        if key not in tensors:
            tensors[key] = torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)
        dist.all_reduce(tensors[key])
        return 0

    library.lockstep_runner_library_serve.argtypes = [
        ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_size_t, type(allreduce)]
    return library.lockstep_runner_library_serve(folder.encode(), rank, size, bytes_max, allreduce)


if __name__ == "__main__":
    sys.exit(main())
