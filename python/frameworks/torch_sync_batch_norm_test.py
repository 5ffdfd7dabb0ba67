"""lockstep.torch.SyncBatchNorm on two ranks, beside torch's BatchNorm over the whole batch in one process."""

import copy
import os
import unittest

import torch
import torch.distributed as dist
from torch import nn

import lockstep
import ranks
from lockstep.torch import DistributedDataParallel, SyncBatchNorm


def whole_batch(step, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(step)) * 2 + 3


class Layers(unittest.TestCase):

    def setUp(self):
        torch.manual_seed(5)

    def own(self, x):
        """Ranks have batches of different sizes."""
        return x[:3] if RANK == 0 else x[3:]

    def check(self, plain, shape, steps=3, **tolerance):
        ours = SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
        self.assertIsInstance(ours, SyncBatchNorm)
        for step in range(steps):
            x = whole_batch(step, shape).requires_grad_()
            mine = self.own(x.detach()).clone().requires_grad_()
            expected, found = plain(x), ours(mine)
            torch.testing.assert_close(found, self.own(expected), **tolerance)
            weights = whole_batch(100 + step, shape)
            (expected * weights).sum().backward()
            (found * self.own(weights)).sum().backward()
            torch.testing.assert_close(mine.grad, self.own(x.grad), rtol=1e-4, atol=1e-4)
        for name, buffer in plain.named_buffers():
            torch.testing.assert_close(dict(ours.named_buffers())[name], buffer, msg=lambda text: f'{name}: {text}')
        for one, other in zip(ours.parameters(), plain.parameters()):
            dist.all_reduce(one.grad)
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-3)
        if RANK == 0:  # no collective
            torch.testing.assert_close(ours.eval()(x), plain.eval()(x), **tolerance)

    def test_equals_batch_norm_of_the_whole_batch(self):
        affine = nn.BatchNorm2d(4)
        nn.init.uniform_(affine.weight), nn.init.uniform_(affine.bias)
        for plain, shape in ((affine, (8, 4, 5, 3)), (nn.BatchNorm1d(6, affine=False), (8, 6)),
                             (nn.BatchNorm1d(2, momentum=None), (8, 2, 7)), (nn.BatchNorm1d(2, momentum=0.0), (8, 2)),
                             (nn.BatchNorm3d(2, track_running_stats=False), (8, 2, 3, 2, 2))):
            with self.subTest(layer=plain):
                self.check(plain, shape)

    def test_a_rank_without_elements(self):
        ours = SyncBatchNorm(2)
        x = whole_batch(0, (6, 2))
        mine = x.clone() if RANK == 0 else torch.empty(0, 2)
        found = ours(mine.requires_grad_())
        torch.testing.assert_close(found, nn.BatchNorm1d(2)(x)[:len(mine)])
        found.square().sum().backward()

    def test_bfloat16(self):
        ours, x = SyncBatchNorm(3), whole_batch(0, (8, 3))
        found = ours(self.own(x).bfloat16())
        self.assertEqual(found.dtype, torch.bfloat16)
        torch.testing.assert_close(found.float(), self.own(nn.BatchNorm1d(3)(x)), rtol=0.05, atol=0.05)

    def test_running_statistics_and_defaults_of_other_dtypes(self):
        for dtype in (torch.bfloat16, torch.float16, torch.float64):
            with self.subTest(dtype):
                plain = nn.BatchNorm1d(3)
                ours = SyncBatchNorm(3, dtype=dtype)
                ours.running_var = torch.ones(6, dtype=dtype)[::2]
                x = whole_batch(0, (8, 3))
                plain(x)
                before = torch.get_default_dtype()
                torch.set_default_dtype(dtype)
                try:
                    found = ours(x.clone() if RANK == 0 else torch.empty(0, 3, dtype=torch.float32))
                finally:
                    torch.set_default_dtype(before)
                torch.testing.assert_close(found, nn.BatchNorm1d(3)(x)[:len(found)], rtol=1e-4, atol=1e-4)
                for name in ('running_mean', 'running_var'):
                    self.assertEqual(getattr(ours, name).dtype, dtype)
                    torch.testing.assert_close(getattr(ours, name).float(), getattr(plain, name), rtol=0.01, atol=0.01)

    def test_compiled(self):
        plain = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
        ours = SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
        x = whole_batch(0, (8, 4))
        expected = self.own(plain(x))
        for model in (ours, DistributedDataParallel(ours)):
            torch._dynamo.reset()
            compiled = torch.compile(model, backend='eager')
            found = compiled(self.own(x))
            found.sum().backward()
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(compiled.eval()(x), ours(x))

    def test_in_distributed_data_parallel(self):
        module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
        plain = copy.deepcopy(module)
        ours = DistributedDataParallel(SyncBatchNorm.convert_sync_batchnorm(module), gradient_as_bucket_view=True)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (ours, plain)]
        for step in range(10):
            x = whole_batch(step, (8, 4))
            mine = x[:4] if RANK == 0 else x[4:]
            for model, optimizer, given in zip((ours, plain), optimizers, (mine, x)):
                optimizer.zero_grad()
                model(given).square().mean().backward()
                optimizer.step()
        for one, other in zip(ours.parameters(), plain.parameters()):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)

    def test_bad_inputs(self):
        layer = SyncBatchNorm(3)
        for x, text in ((torch.ones(3), 'dimensions'), (torch.ones(2, 4), '4 channels for a layer of 3'),
                        (torch.ones(2, 3).double(), 'float64')):
            with self.assertRaisesRegex(lockstep.InvalidArgument, text):
                layer(x)
        x = torch.ones(2, 3, requires_grad=True)
        gradient, = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, 'once_differentiable'):
            gradient.sum().backward()


def setUpModule():
    global RANK
    RANK = int(os.environ['RANK'])
    torch.set_num_threads(1)
    dist.init_process_group('lockstep')


if __name__ == '__main__':
    ranks.main(2)
