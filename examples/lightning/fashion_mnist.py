"""Trains a network on Fashion-MNIST by Lightning's Trainer, in two processes that it starts. Lockstep averages their gradients.

    python examples/lightning/fashion_mnist.py --compare-gloo
"""
import argparse
import gzip
import sys

import lightning
import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Timer
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep.lightning  # registers strategy='lockstep'

parser = argparse.ArgumentParser()
parser.add_argument('--data', default='/usr/share/datasets/fashion-mnist', help="the folder of Debian's package dataset-fashion-mnist")
parser.add_argument('--steps', type=int, default=400)
parser.add_argument('--compare-gloo', action='store_true', help="also train with strategy='ddp', which is PyTorch's over Gloo")
arguments = parser.parse_args()


def read(name, offset, shape):
    with gzip.open(f'{arguments.data}/{name}-ubyte.gz') as file:
        return torch.tensor(np.frombuffer(file.read(), np.uint8, offset=offset).reshape(shape))


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(784, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))

    def training_step(self, batch, index):
        images, labels = batch
        loss = functional.cross_entropy(self.net(images.float() / 255), labels.long())
        self.log('loss', loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def train(name, strategy):
    torch.manual_seed(1)
    data = TensorDataset(read('train-images-idx3', 16, (-1, 784)), read('train-labels-idx1', 8, -1))
    timer = Timer()
    trainer = lightning.Trainer(accelerator='cpu', devices=2, strategy=strategy, max_steps=arguments.steps, callbacks=[timer],
                                logger=False, enable_checkpointing=False, enable_model_summary=False,
                                enable_progress_bar=sys.stdout.isatty())
    trainer.fit(model := Classifier(), DataLoader(data, batch_size=64, shuffle=True))
    lockstep.torch.check_replicas(model, trainer.optimizers[0])  # raises lockstep.DataLoss if any rank's differ
    trainer.print(f'{name}: {timer.time_elapsed("train"):.2f} s, loss {trainer.callback_metrics["loss"]:.4f}; the replicas are equal')


train('Lockstep', 'lockstep')
if arguments.compare_gloo:
    dist.destroy_process_group()  # the next one is Gloo's
    train('Gloo', 'ddp')
