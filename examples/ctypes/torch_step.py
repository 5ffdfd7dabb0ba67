"""Training steps of a PyTorch model whose gradients Lockstep averages: are they right, and how long do they take?

    python3 torch_step.py --device cuda --backend staged

starts --nproc ranks of itself, all on one GPU or on the CPU, and prints PASS where
  - each averaged gradient is, to 1e-6 of the largest value in it on any rank, what torch.distributed makes of the
    gradients that autograd left on each rank before they were averaged;
  - it is, to 1e-3 of its norm, the gradient of the same step under DistributedDataParallel, whose kernels need not add
    up in the same order;
  - the ranks' parameters are equal to the bit after each step.
Then steps without averaging, with Lockstep and with DistributedDataParallel take turns, and their times are printed.
Exit status 0: as above; 1: not; 77: there is no PyTorch here, or not the device.
"""

import argparse
import functools
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

import lockstep

NOTHING_HERE = 77
TINY = 1e-30  # instead of a divisor of zero
TOLERANCE, DDP_TOLERANCE = 1e-6, 1e-3
STEPS_IN_ROUND = 5  # of each kind


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--backend", choices=("auto", "nccl", "staged"), default="auto",
                        help="how Lockstep brings a GPU's tensors to the other ranks")
    parser.add_argument("--model", choices=("auto", "resnet50", "transformer", "cnn"), default="auto",
                        help="auto: on a GPU resnet50, or without torchvision the transformer; on the CPU the cnn")
    parser.add_argument("--batch", type=int, default=16, help="samples of each rank")
    parser.add_argument("--nproc", type=int, default=2, help="ranks")
    parser.add_argument("--steps", type=int, default=3, help="whose gradients are compared")
    parser.add_argument("--rounds", type=int, default=7, help="in which the three kinds of steps take turns")
    parser.add_argument("--timeout_s", type=float, default=240, help="of everything")
    return parser.parse_args()


# ---- The ranks' parent -----------------------------------------------------------------------------------------------


def launch(options):
    try:
        import torch
    except ImportError as error:
        return skip(f"no PyTorch here: {error}")
    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
        return skip(f"PyTorch {torch.__version__} is too old: its tensors have no register_post_accumulate_grad_hook")
    if options.device == "cuda" and not torch.cuda.is_available():
        return skip("PyTorch sees no GPU here")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [start(rank, options.nproc, folder) for rank in range(options.nproc)]
        try:
            return wait(ranks, time.monotonic() + options.timeout_s)
        finally:
            for process in ranks:
                process.kill()
                process.wait()


def skip(reason):
    print(reason)
    return NOTHING_HERE


def start(rank, size, folder):
    variables = {
        "LOCKSTEP_RANK": rank, "LOCKSTEP_WORLD_SIZE": size, "LOCKSTEP_STORE": f"file://{folder}/lockstep",
        "TORCH_STORE": f"file://{folder}/torch",
        # NCCL takes ranks on one GPU only for those of several hosts, which talk by sockets.
        "NCCL_HOSTID": f"rank{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": 1, "GLOO_SOCKET_IFNAME": "lo",
    }
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    return subprocess.Popen([sys.executable, *sys.argv], env=environment)


def wait(ranks, deadline):
    """0 when all have ended well; 1 as soon as one has not, or the deadline has passed."""
    left = {os.pidfd_open(process.pid): rank for rank, process in enumerate(ranks)}
    while left:
        ended, _, _ = select.select(left, [], [], max(0, deadline - time.monotonic()))
        if not ended:
            print(f"ranks {sorted(left.values())} are not done in time")
            return 1
        for fd in ended:
            rank = left.pop(fd)
            os.close(fd)
            status = ranks[rank].wait()
            if status != 0:
                print(f"rank {rank} ended with status {status}")
                return 1
    return 0


# ---- Models ----------------------------------------------------------------------------------------------------------


def make_model(name, device):
    """Returns its name, the module, and a function of a batch size that makes inputs and labels."""
    from torch import nn
    if name == "auto":
        name = "cnn" if device.type == "cpu" else "resnet50" if has_torchvision() else "transformer"
    if name == "resnet50":
        import torchvision
        module = torchvision.models.resnet50(weights=None)
        return name, module, functools.partial(images, 224, 1000, device)
    if name == "transformer":
        layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
        module = nn.Sequential(nn.Embedding(8192, 512), nn.TransformerEncoder(layer, 6), nn.Linear(512, 8192),
                               nn.Flatten(0, 1))
        return name, module, functools.partial(tokens, 128, 8192, device)
    module = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 16 * 16, 128), nn.ReLU(), nn.Linear(128, 10))
    return name, module, functools.partial(images, 32, 10, device)


def has_torchvision():
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return False
    return True


def images(side, classes, device, batch):
    import torch
    return torch.randn(batch, 3, side, side, device=device), torch.randint(classes, (batch,), device=device)


def tokens(length, words, device, batch):
    import torch
    inputs = torch.randint(words, (batch, length), device=device)
    return inputs, inputs.roll(-1, dims=1).flatten()


# ---- A rank ----------------------------------------------------------------------------------------------------------


class Rank:
    def __init__(self, options, communicator):
        import torch
        from lockstep_torch import GradientAverager
        self.options, self.communicator, self.torch = options, communicator, torch
        self.device = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
        # The averager's broadcast makes the parameters equal; inputs differ.
        torch.manual_seed(1 + communicator.rank)
        self.name, model, self.make_batch = make_model(options.model, self.device)
        self.model = model.to(self.device)
        # Ahead of the averager's hooks, hence on gradients that are this rank's own.
        self.own = {}
        self.keep_own = False
        for name, parameter in self.model.named_parameters():
            parameter.register_post_accumulate_grad_hook(functools.partial(self.keep, name))
        self.averager = GradientAverager(self.model, communicator)
        self.averager.broadcast()
        twin = make_model(options.model, self.device)[1].to(self.device)
        twin.load_state_dict(self.model.state_dict())
        self.ddp = torch.nn.parallel.DistributedDataParallel(twin)
        self.loss = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.ddp_optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.01)

    def keep(self, name, parameter):
        if self.keep_own:
            self.own[name] = parameter.grad.clone()

    def all_reduced(self, tensor, op):
        result = tensor.clone()
        self.torch.distributed.all_reduce(result, op)
        return result

    # ---- Are the gradients right?

    def compare(self):
        """Returns what is wrong, a line each."""
        op = self.torch.distributed.ReduceOp
        wrong, worst, worst_ddp, differing = [], 0.0, 0.0, 0
        self.keep_own = True
        for step in range(self.options.steps):
            self.ddp.module.load_state_dict(self.model.state_dict())
            inputs, labels = self.make_batch(self.options.batch)
            self.optimizer.zero_grad()
            with self.averager.backward():
                self.loss(self.model(inputs), labels).backward()
            self.ddp_optimizer.zero_grad()
            self.loss(self.ddp(inputs), labels).backward()
            ddp_gradients = {name: it.grad for name, it in self.ddp.module.named_parameters()}
            for name, parameter in self.model.named_parameters():
                gradient, where = parameter.grad, f"step {step}, {name}"
                own = self.own[name]
                average = self.all_reduced(own, op.SUM) / self.communicator.size
                largest = self.all_reduced(own.abs().max(), op.MAX).clamp_min(TINY)
                error = float((gradient - average).abs().max() / largest)
                # Written so that NaN is wrong.
                if not error <= TOLERANCE:
                    wrong.append(f"{where}: {error:.2g} of the largest value from the average of the ranks' gradients")
                ddp_error = float((gradient - ddp_gradients[name]).norm() / average.norm().clamp_min(TINY))
                if not ddp_error <= DDP_TOLERANCE and not self.vanishes(average):
                    wrong.append(f"{where}: {ddp_error:.2g} of its norm from DistributedDataParallel's")
                worst, worst_ddp = max(worst, error), max(worst_ddp, ddp_error)
                differing += not self.torch.equal(own, average)
            self.optimizer.step()
            wrong += [f"step {step}, {name}: ranks have other parameters" for name in self.not_equal_on_all_ranks()]
        self.keep_own = False
        if differing == 0:
            wrong.append("the ranks' own gradients are their average: nothing was tested")
        self.say(f"# {self.options.steps} steps; largest difference from the average of the ranks' gradients: {worst:.2g} "
                 f"of the largest value; from DistributedDataParallel: {worst_ddp:.2g} of the norm")
        return wrong

    def vanishes(self, gradient):
        """A bias in front of a normalisation has none but rounding errors, which are not alike."""
        return float(gradient.abs().max()) < 1e-6

    def not_equal_on_all_ranks(self):
        op = self.torch.distributed.ReduceOp
        for name, parameter in self.model.named_parameters():
            value = parameter.detach()
            if not self.torch.equal(self.all_reduced(value, op.MIN), self.all_reduced(value, op.MAX)):
                yield name

    # ---- How long does a step take?

    def measure(self):
        batches = [self.make_batch(self.options.batch) for _ in range(4)]
        kinds = {
            "no averaging": self.step_alone,
            "Lockstep": self.step_with_lockstep,
            "DistributedDataParallel": self.step_with_ddp,
        }
        times = {kind: [] for kind in kinds}
        for number in range(self.options.rounds + 1):
            for kind, step in kinds.items():
                self.meet()
                begin = time.perf_counter()
                for i in range(STEPS_IN_ROUND):
                    step(*batches[i % len(batches)])
                self.finish()
                if number > 0:  # the first round warms up
                    times[kind].append((time.perf_counter() - begin) * 1e3 / STEPS_IN_ROUND)
        self.say(f"\n{'milliseconds a step':<36} median   quartiles, of {self.options.rounds} rounds")
        for kind, values in times.items():
            self.say_quartiles(kind, values, 2)
        ratios = [a / b for a, b in zip(times["Lockstep"], times["DistributedDataParallel"])]
        self.say_quartiles("Lockstep / DistributedDataParallel", ratios, 3)

    def step_alone(self, inputs, labels):
        self.optimizer.zero_grad()
        self.loss(self.model(inputs), labels).backward()
        self.optimizer.step()

    def step_with_lockstep(self, inputs, labels):
        self.optimizer.zero_grad()
        with self.averager.backward():
            self.loss(self.model(inputs), labels).backward()
        self.optimizer.step()

    def step_with_ddp(self, inputs, labels):
        self.ddp_optimizer.zero_grad()
        self.loss(self.ddp(inputs), labels).backward()
        self.ddp_optimizer.step()

    def finish(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def meet(self):
        self.finish()
        self.all_reduced(self.torch.zeros(1, device=self.device), self.torch.distributed.ReduceOp.SUM).item()

    # ---- What is printed

    def say(self, line):
        if self.communicator.rank == 0:
            print(line, flush=True)

    def say_quartiles(self, what, values, digits):
        low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        self.say(f"{what:<36} {middle:6.{digits}f}   {low:.{digits}f} - {high:.{digits}f}")

    def introduce(self, reference):
        gradients = [p for p in self.model.parameters() if p.requires_grad]
        megabytes = sum(p.numel() * p.element_size() for p in gradients) / 1e6
        where = self.torch.cuda.get_device_name(0) if self.device.type == "cuda" else "the CPU"
        self.say(f"# PyTorch {self.torch.__version__}, {self.name}, {len(gradients)} gradients, {megabytes:.1f} MB, "
                 f"{self.communicator.size} ranks on {where}, batches of {self.options.batch} on each")
        for line in self.communicator.describe().splitlines():
            self.say(f"# {line}")
        self.say(f"# PyTorch's own: {reference}")


def device_options(options):
    if options.device == "cpu":
        return {}
    return {"device_kind": lockstep.CUDA, "device_index": 0, "device_backend": options.backend}


def run_rank(options):
    import torch
    rank, size = int(os.environ["LOCKSTEP_RANK"]), int(os.environ["LOCKSTEP_WORLD_SIZE"])
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    reference = "nccl" if options.backend == "nccl" else "gloo"
    torch.distributed.init_process_group(reference, init_method=os.environ["TORCH_STORE"], rank=rank, world_size=size,
                                         timeout=timedelta(seconds=options.timeout_s))
    library = lockstep.Library()
    timeout_ms = int(options.timeout_s * 1000)
    with lockstep.Communicator(library, timeout_ms=timeout_ms, **device_options(options)) as communicator:
        this = Rank(options, communicator)
        this.introduce(reference)
        # So that the same gradients can be computed twice.
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            wrong = this.compare()
        if options.rounds > 0 and not wrong:
            this.measure()
            this.say("\n" + this.averager.reducer.summary())
        this.averager.close()
    torch.distributed.destroy_process_group()
    for line in wrong[:20]:
        print(f"rank {rank}: {line}", flush=True)
    if wrong:
        return 1
    this.say("PASS")
    return 0


def main():
    options = parse()
    return run_rank(options) if "LOCKSTEP_RANK" in os.environ else launch(options)


if __name__ == "__main__":
    sys.exit(main())
