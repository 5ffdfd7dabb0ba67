"""Lightning's Fabric and Trainer on Lockstep: two devices of the CPU, on a slice of Fashion-MNIST.

Launchers starts this file again, as scripts that Lightning's launchers multiply. `ranks`, one of them, runs the tests of Ranks twice.
Wherever weights are compared they are compared bit for bit with those of strategy='ddp' over Gloo.
"""

import gzip
import hashlib
import logging
import os
import signal
import sys
import tempfile
import time
import unittest
import warnings
from datetime import timedelta

import lightning.fabric
import lightning.pytorch as pl
import numpy as np
import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import lockstep.lightning
import programs

DATA = '/usr/share/datasets/fashion-mnist/t10k-'
WORLD = 2
logging.getLogger('lightning').setLevel(logging.WARNING)


def fashion_mnist(count):
    with gzip.open(DATA + 'images-idx3-ubyte.gz') as images, gzip.open(DATA + 'labels-idx1-ubyte.gz') as labels:
        pixels = np.frombuffer(images.read(16 + 784 * count), np.uint8, offset=16).reshape(count, 784)
        classes = np.frombuffer(labels.read(8 + count), np.uint8, offset=8)
    return TensorDataset(torch.tensor(pixels / 255, dtype=torch.float32), torch.tensor(classes, dtype=torch.int64))


def loader(count=256, batch=16):
    return DataLoader(fashion_mnist(count), batch_size=batch)


def network():
    torch.manual_seed(17)
    return torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x):
        return self.net(x)

    def loss(self, batch):
        x, y = batch
        return functional.cross_entropy(self(x), y)

    def training_step(self, batch, index):
        loss = self.loss(batch)
        self.log('loss', loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        self.log('val_loss', self.loss(batch), sync_dist=True)

    def test_step(self, batch, index):
        self.log('test_loss', self.loss(batch), sync_dist=True)

    def predict_step(self, batch, index):
        return self(batch[0]).argmax(1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Branches(Classifier):
    """Ranks use one branch or another, or both ranks none of the two."""

    def __init__(self):
        super().__init__()
        self.branches = torch.nn.ModuleList(torch.nn.Linear(10, 10) for _ in range(3))

    def training_step(self, batch, index):
        x, y = batch
        logits = self.net(x)
        if index % 3:
            logits = self.branches[(index + self.global_rank) % 2](logits)
        return functional.cross_entropy(logits, y)


class Manual(Classifier):
    """Two optimizers, each for a half of the parameters, and gradients of two batches accumulated without a synchronisation."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        for optimizer in self.optimizers():
            if index % 2 == 0:
                optimizer.zero_grad()
            with optimizer.toggle_model(sync_grad=index % 2 == 1):
                self.manual_backward(self.loss(batch))
            if index % 2 == 1:
                optimizer.step()

    def configure_optimizers(self):
        first, second = self.net[:2].parameters(), self.net[2:].parameters()
        return torch.optim.SGD(first, lr=0.05), torch.optim.SGD(second, lr=0.05)


def trainer(strategy, **options):
    options = {'max_epochs': 1, 'logger': False, 'enable_checkpointing': False, 'enable_progress_bar': False,
               'enable_model_summary': False, **options}
    return pl.Trainer(accelerator='cpu', devices=WORLD, strategy=strategy, **options)


def fabric(strategy, **options):
    made = Fabric(accelerator='cpu', devices=WORLD, strategy=strategy, **options)
    made.launch()
    return made


_stores = []


def new_group():
    """The next strategy makes a process group of its own. Its store is served here, as torchrun does it, so that no port has to be free."""
    port = [None]
    if dist.get_rank() == 0:
        _stores.append(dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False))
        port = [_stores[-1].port]
    dist.broadcast_object_list(port)
    dist.destroy_process_group()
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port[0]), TORCHELASTIC_USE_AGENT_STORE='True')


def train_by_fabric(strategy, steps=20, **options):
    """A loop with accumulation, clipping and a sampler; the weights."""
    fabric_ = fabric(strategy, **options)
    model, optimizer = network(), None
    model, optimizer = fabric_.setup(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    batches = iter(fabric_.setup_dataloaders(loader(16 * WORLD * steps)))
    for step in range(steps):
        x, y = next(batches)
        accumulating = step % 2 == 0
        with fabric_.no_backward_sync(model, enabled=accumulating):
            fabric_.backward(functional.cross_entropy(model(x), y))
        if not accumulating:
            fabric_.clip_gradients(model, optimizer, max_norm=0.5)
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


class Ranks(unittest.TestCase):
    """In each of two ranks, in one order."""

    @classmethod
    def setUpClass(cls):
        cls.folder = os.environ['LIGHTNING_TEST_FOLDER']

    def tearDown(self):
        new_group()
        fabric('lockstep')

    def assert_equal(self, found, expected):
        self.assertEqual(list(found), list(expected))
        for name, tensor in found.items():
            self.assertTrue(torch.equal(tensor, expected[name]), name)

    def assert_same_as_ddp(self, train, lockstep_strategy='lockstep', ddp='ddp'):
        """train(strategy) returns weights."""
        new_group()
        found = train(lockstep_strategy)
        self.assertEqual(dist.get_backend(), 'lockstep')
        new_group()
        expected = train(ddp)
        self.assertEqual(dist.get_backend(), 'gloo')
        self.assert_equal(found, expected)
        return found

    def assert_fit_same_as_ddp(self, module=Classifier, lockstep_strategy='lockstep', ddp='ddp', **options):
        metrics = []

        def fit(strategy):
            model = module()
            fitted = trainer(strategy, **options)
            fitted.fit(model, loader())
            metrics.append(fitted.callback_metrics)
            return model.state_dict()
        self.assert_same_as_ddp(fit, lockstep_strategy, ddp)
        self.assertEqual(*metrics)

    # ---- Fabric

    def test_fabric_trains_as_ddp_does(self):
        self.assert_same_as_ddp(train_by_fabric)

    def test_fabric_trains_as_ddp_does_in_bfloat16(self):
        self.assert_same_as_ddp(lambda strategy: train_by_fabric(strategy, steps=6, precision='bf16-mixed'))

    def test_fabric_collectives(self):
        fabric_ = fabric('lockstep')
        rank = fabric_.global_rank
        self.assertEqual(fabric_.all_reduce(torch.tensor([1., 2.]) * (rank + 1)).tolist(), [1.5, 3.])
        self.assertEqual(fabric_.all_reduce(torch.tensor([1, 2]) * (rank + 1), reduce_op='sum').tolist(), [3, 6])
        self.assertEqual(fabric_.all_gather(torch.tensor([rank, 7])).tolist(), [[0, 7], [1, 7]])
        self.assertEqual(fabric_.broadcast({'from': rank}, src=1), {'from': 1})
        self.assertIs(fabric_.strategy.reduce_boolean_decision(rank == 0), False)
        self.assertIs(fabric_.strategy.reduce_boolean_decision(rank == 0, all=False), True)
        fabric_.barrier()

    def test_all_gather_passes_gradients_back(self):
        fabric_ = fabric('lockstep')
        mine = torch.tensor([1. + fabric_.global_rank], requires_grad=True)
        gathered = fabric_.all_gather(mine, sync_grads=True)
        gathered.square().sum().backward()
        self.assertEqual(mine.grad.item(), WORLD * 2 * mine.item())

    def test_no_backward_sync_keeps_gradients_to_itself(self):
        fabric_ = fabric('lockstep')
        model = fabric_.setup(torch.nn.Linear(2, 1, bias=False))
        x = torch.full((1, 2), 1. + fabric_.global_rank)
        with fabric_.no_backward_sync(model):
            fabric_.backward(model(x).sum())
        self.assertEqual(model.weight.grad.tolist(), x.tolist())
        fabric_.backward(model(x).sum())
        self.assertEqual(model.weight.grad.tolist(), [[3., 3.]])

    def test_fabric_checkpoint(self):
        fabric_ = fabric('lockstep')
        path = os.path.join(self.folder, 'fabric.ckpt')
        model = fabric_.setup(network())
        fabric_.save(path, {'model': model, 'step': 3})
        self.assertEqual(list(torch.load(path)['model']), list(network().state_dict()))
        with torch.no_grad():
            model.module[0].weight.zero_()
        state = {'model': model, 'step': 0}
        fabric_.load(path, state)
        self.assertEqual(state['step'], 3)
        self.assert_equal(model.state_dict(), network().state_dict())

    def test_options_reach_the_wrapper(self):
        fabric_ = fabric(lockstep.lightning.FabricStrategy(bucket_cap_mb=1, gradient_as_bucket_view=True))
        wrapper = fabric_.setup(network())._forward_module
        self.assertIs(type(wrapper), lockstep.torch.DistributedDataParallel)
        self.assertIs(wrapper.gradient_as_bucket_view, True)
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'no option bucket_mb'):
            fabric(lockstep.lightning.FabricStrategy(bucket_mb=1)).setup(network())

    def test_process_group_backend_and_timeout(self):
        new_group()
        fabric_ = fabric(lockstep.lightning.FabricStrategy(process_group_backend='gloo', timeout=timedelta(seconds=77)))
        self.assertEqual(dist.get_backend(), 'gloo')
        self.assertEqual(dist.group.WORLD._get_backend(torch.device('cpu')).options._timeout, timedelta(seconds=77))
        model = fabric_.setup(torch.nn.Linear(2, 1, bias=False))
        fabric_.backward(model(torch.full((1, 2), 1. + fabric_.global_rank)).sum())
        self.assertEqual(model.weight.grad.tolist(), [[1.5, 1.5]])

    # ---- Trainer

    def test_trainer_fits_as_ddp_does(self):
        self.assert_fit_same_as_ddp(max_epochs=2, accumulate_grad_batches=3, gradient_clip_val=0.5)

    def test_trainer_fits_as_ddp_does_in_bfloat16(self):
        self.assert_fit_same_as_ddp(precision='bf16-mixed')

    def test_trainer_fits_as_ddp_does_with_a_static_graph(self):
        self.assert_fit_same_as_ddp(lockstep_strategy=lockstep.lightning.TrainerStrategy(static_graph=True),
                                    ddp=pl.strategies.DDPStrategy(static_graph=True))

    def test_trainer_fits_as_ddp_does_with_unused_parameters(self):
        self.assert_fit_same_as_ddp(Branches, 'lockstep_find_unused_parameters_true', 'ddp_find_unused_parameters_true')

    def test_trainer_fits_as_ddp_does_with_manual_optimisation(self):
        self.assert_fit_same_as_ddp(Manual, 'lockstep_find_unused_parameters_true', 'ddp_find_unused_parameters_true')

    def test_unused_parameters_are_named(self):
        with self.assertRaisesRegex(lockstep.FailedPrecondition, 'branches.2.weight'):
            trainer('lockstep').fit(Branches(), loader())

    def test_a_backbone_that_is_unfrozen_is_averaged(self):
        class Finetuned(Classifier):
            def __init__(self):
                super().__init__()
                self.backbone, self.net = self.net[:2], self.net[2:]

            def forward(self, x):
                return self.net(self.backbone(x))

            def configure_optimizers(self):
                return torch.optim.SGD(filter(lambda parameter: parameter.requires_grad, self.parameters()), lr=0.05)

        model = Finetuned()
        before = model.backbone[0].weight.detach().clone()
        fitted = trainer('lockstep', max_epochs=3, callbacks=[pl.callbacks.BackboneFinetuning(1, lambda epoch: 1.0, verbose=False)])
        fitted.fit(model, loader())
        self.assertFalse(torch.equal(model.backbone[0].weight, before))
        for parameter in model.parameters():
            of_ranks = [torch.empty_like(parameter) for _ in range(WORLD)]
            dist.all_gather(of_ranks, parameter.detach())
            self.assertTrue(torch.equal(*of_ranks))

    def test_replicas_are_compared_with_any_strategy(self):
        class Drifting(Classifier):
            def on_train_epoch_start(self):
                if self.current_epoch == 1 and self.global_rank == 1:
                    self.net[3].bias.data[7] += 1

        for strategy in ('lockstep', 'ddp'):
            with self.subTest(strategy):
                trainer(strategy, max_epochs=1, callbacks=[lockstep.lightning.CheckReplicas()]).fit(Drifting(), loader())
                fitted = trainer(strategy, max_epochs=3, callbacks=[lockstep.lightning.CheckReplicas()])
                with self.assertRaisesRegex(lockstep.DataLoss, r"'net.3.bias' \(f32\[10\]\), at \[7\]: rank 0 has"):
                    fitted.fit(Drifting(), loader())
                self.assertEqual(fitted.current_epoch, 1)
        strategy = lockstep.lightning.TrainerStrategy(may_drift=['net.3.bias'])
        trainer(strategy, max_epochs=3, callbacks=[lockstep.lightning.CheckReplicas()]).fit(Drifting(), loader())

    def test_every_name_that_lightning_has_for_ddp(self):
        for registry in (pl.strategies.StrategyRegistry, lightning.fabric.strategies.STRATEGY_REGISTRY):
            for name in registry.available_strategies():
                if name.startswith('ddp') and not name.endswith('_false'):
                    options = registry[name]['init_params']
                    self.assertEqual(registry['lockstep' + name.removeprefix('ddp')]['init_params'].items() | {('start_method', 'popen')},
                                     options.items() | {('start_method', 'popen')})

    def test_evaluation(self):
        model, trainer_ = Classifier(), trainer('lockstep')
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            validated = trainer_.validate(model, loader(), verbose=False)[0]['val_loss']
            tested = trainer_.test(model, loader(), verbose=False)[0]['test_loss']
            predicted = torch.cat(trainer_.predict(model, loader(), return_predictions=True))
        model = Classifier().eval()
        x, y = fashion_mnist(256).tensors
        self.assertAlmostEqual(validated, functional.cross_entropy(model(x), y).item(), places=5)
        self.assertEqual(tested, validated)
        # This rank's half, as the distributed sampler deals them.
        self.assertTrue(torch.equal(predicted, model(x).argmax(1)[dist.get_rank()::WORLD]))

    def test_resume(self):
        straight = Classifier()
        trainer('lockstep', max_epochs=2).fit(straight, loader())
        path = os.path.join(self.folder, 'trainer.ckpt')
        begun = trainer('lockstep', max_epochs=1)
        begun.fit(Classifier(), loader())
        begun.save_checkpoint(path)
        self.assertEqual(list(torch.load(path, weights_only=False)['state_dict']), list(straight.state_dict()))
        resumed = Classifier()
        trainer('lockstep', max_epochs=2).fit(resumed, loader(), ckpt_path=path)
        self.assert_equal(resumed.state_dict(), straight.state_dict())

    def test_a_module_is_fitted_twice(self):
        def fit(strategy):
            model = Classifier()
            for _ in range(2):
                trainer(strategy).fit(model, loader())
            return model.state_dict()
        self.assert_same_as_ddp(fit)

    def test_a_communication_hook_works_on_the_cpu(self):
        buckets = []

        def hook(state, bucket):
            state.append(bucket.index())
            return default_hooks.allreduce_hook(None, bucket)
        model, plain = Classifier(), Classifier()
        trainer(lockstep.lightning.TrainerStrategy(ddp_comm_state=buckets, ddp_comm_hook=hook), max_steps=3).fit(model, loader())
        trainer('lockstep', max_steps=3).fit(plain, loader())
        self.assertEqual(buckets, [0, 0, 0])
        self.assert_equal(model.state_dict(), plain.state_dict())

    def test_sync_batchnorm_is_refused_on_the_cpu_as_ddp_refuses_it(self):
        for strategy in ('lockstep', 'ddp'):
            with self.assertRaisesRegex(ValueError, 'SyncBatchNorm .* GPU'):
                trainer(strategy, sync_batchnorm=True).fit(Classifier(), loader())

    def test_locksteps_sync_batchnorm_works_on_the_cpu(self):
        model = Classifier()
        model.net = lockstep.torch.SyncBatchNorm.convert_sync_batchnorm(model.net)
        data = fashion_mnist(256)
        dealt = DataLoader(data, batch_size=16, sampler=DistributedSampler(data, WORLD, dist.get_rank(), shuffle=False))
        trainer('lockstep', use_distributed_sampler=False).fit(model, dealt)
        # Batches of all ranks are one batch: as if one process trained on them.
        alone = network()
        optimizer = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
        for x, y in loader(batch=16 * WORLD):
            optimizer.zero_grad()
            functional.cross_entropy(alone(x), y).backward()
            optimizer.step()
        for name, tensor in alone.state_dict().items():
            torch.testing.assert_close(model.net.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)

    def test_an_exception_on_every_rank_leaves_the_process_group(self):
        class Stops(Classifier):
            def training_step(self, batch, index):
                if index == 2:
                    raise RuntimeError('enough')
                return super().training_step(batch, index)
        with self.assertRaisesRegex(RuntimeError, 'enough'):
            trainer('lockstep').fit(Stops(), loader())
        trainer('lockstep', max_steps=2).fit(Classifier(), loader())


# ---- Scripts, which Lightning's launchers multiply


def script_ranks():
    fabric('lockstep_popen')
    unittest.main(argv=[__file__, *sys.argv[2:]], defaultTest='Ranks', failfast=True)


def script_train(strategy):
    """Fabric's loop and the Trainer's, in processes of their own; then the weights of both."""
    path = os.path.join(os.environ['LIGHTNING_TEST_FOLDER'], strategy + '.pt')
    by_fabric = Fabric(accelerator='cpu', devices=WORLD, strategy=strategy)
    by_fabric.launch(_train_and_save, path)
    model = Classifier()
    trainer(strategy).fit(model, loader())
    if int(os.environ.get('LOCAL_RANK', 0)) == 0:
        digest = hashlib.sha256()
        for weights in (torch.load(path), model.state_dict()):
            for tensor in weights.values():
                digest.update(tensor.numpy().tobytes())
        print('weights', digest.hexdigest(), flush=True)


def _train_and_save(fabric_, path):
    model = fabric_.setup(network())
    optimizer = fabric_.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.05))
    for x, y in fabric_.setup_dataloaders(loader(64)):
        fabric_.backward(functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    if fabric_.global_rank == 0:
        torch.save(model.state_dict(), path)


def script_split():
    """The packages lightning_fabric and pytorch_lightning, which are not `lightning` under another name."""
    import lightning_fabric
    import pytorch_lightning
    from pytorch_lightning.demos.boring_classes import BoringModel
    lightning_fabric.Fabric(accelerator='cpu', devices=WORLD, strategy='lockstep_spawn').launch(_check_all_reduce)
    pytorch_lightning.Trainer(accelerator='cpu', devices=WORLD, strategy='lockstep_fork', max_steps=3, logger=False,
                              enable_checkpointing=False, enable_progress_bar=False).fit(BoringModel())


def _check_all_reduce(fabric_):
    wrapper = fabric_.setup(network())._forward_module
    assert type(wrapper) is lockstep.torch.DistributedDataParallel
    assert fabric_.all_reduce(torch.tensor(1. + fabric_.global_rank)).item() == 1.5


class Fails(Classifier):
    """In batch 3 one rank 'dies', 'raises', or 'interrupts' all, as Ctrl-C does."""

    def __init__(self, rank, action):
        super().__init__()
        self.rank, self.action = int(rank), action

    def training_step(self, batch, index):
        if index == 3 and self.global_rank == self.rank:
            if self.action == 'dies':
                os.kill(os.getpid(), signal.SIGKILL)
            if self.action == 'raises':
                raise ValueError('a bad batch')
            os.killpg(0, signal.SIGINT)
        return super().training_step(batch, index)


def script_fails(strategy, rank, action):
    trainer(strategy).fit(Fails(rank, action), loader())


class Launchers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name

    def start(self, *arguments, script=None, seconds=300):
        """(exit status, all that was written) of Python with these arguments."""
        return programs.run([sys.executable, *arguments], seconds, script, LIGHTNING_TEST_FOLDER=self.folder)

    def weights(self, *arguments, script=None):
        status, output = self.start(*arguments, script=script)
        self.assertEqual(status, 0, output)
        found = [line for line in output.splitlines() if line.startswith('weights ')]
        self.assertEqual(len(found), 1, output)
        return found[0]

    def test_ranks(self):
        began = time.monotonic()
        status, output = self.start(__file__, 'ranks')
        self.assertEqual(status, 0, output)
        self.assertEqual(output.count('\nOK\n'), WORLD, output)
        print(f'the ranks took {time.monotonic() - began:.0f} s')

    def test_each_launcher_trains_as_ddp_does(self):
        expected = self.weights(__file__, 'train', 'ddp')
        for strategy in ('lockstep_popen', 'lockstep_spawn', 'lockstep_fork'):
            with self.subTest(strategy):
                self.assertEqual(self.weights(__file__, 'train', strategy), expected)
        with self.subTest('torchrun'):
            torchrun = ('-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', str(WORLD))
            self.assertEqual(self.weights(*torchrun, __file__, 'train', 'lockstep'), expected)
        with self.subTest('lockstep_notebook'):
            # As in a notebook: the interpreter is interactive, and __main__ is no file.
            cell = f'import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r}); import lightning_test\n'
            self.assertEqual(self.weights('-i', '-q', script=cell + 'lightning_test.script_train("lockstep_notebook")\n'), expected)
            _, output = self.start('-i', '-q', script=cell + 'lightning_test.script_train("lockstep_popen")\n')
            self.assertIn('is not compatible with an interactive', output)

    def test_the_split_packages(self):
        status, output = self.start(__file__, 'split')
        self.assertEqual(status, 0, output)
        self.assertIn('`Trainer.fit` stopped: `max_steps=3` reached.', output)

    def test_an_exception_ends_the_job(self):
        for strategy, rank in (('lockstep', 0), ('lockstep', 1), ('lockstep_spawn', 1)):
            with self.subTest(strategy, rank=rank):
                status, output = self.start(__file__, 'fails', strategy, str(rank), 'raises', seconds=150)
                self.assertNotEqual(status, 0)
                of_others = rf'Aborted: .*rank {rank} .* has closed its communicator'
                if strategy == 'lockstep':
                    self.assertIn('ValueError: a bad batch', output)
                    self.assertRegex(output, of_others)
                else:  # the parent shows the exception of the process that ends first
                    self.assertRegex(output, f'ValueError: a bad batch|{of_others}')

    def test_a_rank_that_dies_ends_the_job(self):
        status, output = self.start(__file__, 'fails', 'lockstep', '1', 'dies', seconds=150)
        self.assertNotEqual(status, 0)
        self.assertRegex(output, 'Aborted: .*rank 1')

    def test_an_interrupt_ends_the_job(self):
        status, output = self.start(__file__, 'fails', 'lockstep', '0', 'interrupts', seconds=150)
        self.assertNotEqual(status, 0)
        self.assertIn('Detected KeyboardInterrupt, attempting graceful shutdown', output)

    def test_without_the_import_the_name_is_unknown_to_lightning(self):
        status, output = self.start('-c', "import lightning; lightning.Trainer(strategy='lockstep', accelerator='cpu')")
        self.assertNotEqual(status, 0)
        self.assertIn("You selected an invalid strategy name: `strategy='lockstep'`", output)

    def test_lightning_is_missing_or_too_old(self):
        without = "import sys; sys.modules.update(dict.fromkeys(('lightning', 'lightning_fabric', 'pytorch_lightning')))\n"
        old = "import types; sys.modules['lightning'] = types.SimpleNamespace(__version__='2.0.9')\n"
        for script, there in ((without, 'none'), (without + old, 'lightning 2.0.9')):
            status, output = self.start('-c', script + 'import lockstep.lightning')
            self.assertEqual(status, 1, output)
            self.assertIn('ImportError: lockstep.lightning needs Lightning 2.5 or later', output)
            self.assertIn(f"there is {there}: pip install 'lightning>=2.5'", output)


if __name__ == '__main__':
    if len(sys.argv) > 1 and 'script_' + sys.argv[1] in globals():
        globals()['script_' + sys.argv[1]](*([] if sys.argv[1] == 'ranks' else sys.argv[2:]))
    else:
        unittest.main(defaultTest='Launchers')
