"""KIND WAY CULPRIT: a rank of a job of plain Python, torch or Lightning, in which rank CULPRIT fails in its fourth step. The pairs are
worlds or process groups of two ranks each, and the pair of which none fails goes on until the launcher ends it."""

import itertools
import os
import signal
import sys

STEPS = 1000


def fail(way):
    if way == 'raise':
        raise ValueError('a bad batch:\n' + 40 * '  a row\n' + '  \udce9\0')
    if way == 'exit':
        sys.exit(3)
    if way == 'signal':
        os.kill(os.getpid(), signal.SIGKILL)
    kept = []
    while True:  # until its control group is out of memory
        kept.append(b'\1' * (4 << 20))


def run_python(at_step):
    import array

    import lockstep
    communicator = lockstep.init()
    for step in range(STEPS):
        at_step(communicator.rank, step)
        communicator.all_reduce(array.array('f', [1]))


def run_python_pairs(at_step):
    import array

    import lockstep
    rank = int(os.environ['LOCKSTEP_RANK'])
    communicator = lockstep.init(rank=rank % 2, world_size=2, job_id=str(rank // 2))
    for step in itertools.count():
        at_step(rank, step)
        communicator.all_reduce(array.array('f', [1]))


def run_torch(at_step, pairs=False):
    import torch
    import torch.distributed as dist
    dist.init_process_group('lockstep')
    group = dist.new_subgroups(2)[0] if pairs else None
    for step in itertools.count() if pairs else range(STEPS):
        at_step(dist.get_rank(), step)
        dist.all_reduce(torch.ones(4), group=group)


def run_torch_pairs(at_step):
    run_torch(at_step, pairs=True)


def run_lightning(at_step):
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.demos.boring_classes import BoringModel

    import lockstep.lightning  # noqa: F401

    class Model(BoringModel):
        def training_step(self, batch, batch_idx):
            at_step(self.global_rank, batch_idx)
            return super().training_step(batch, batch_idx)

        def train_dataloader(self):
            return torch.utils.data.DataLoader(torch.randn(STEPS, 32))

    pl.Trainer(strategy='lockstep', accelerator='cpu', devices=int(os.environ['WORLD_SIZE']), max_epochs=1, logger=False,
               enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0).fit(Model())


def main():
    kind, way, culprit = sys.argv[1:]
    globals()[f'run_{kind}'](
        lambda rank, step: fail(way) if (rank, step) == (int(culprit), 3) else None)


if __name__ == '__main__':
    main()
