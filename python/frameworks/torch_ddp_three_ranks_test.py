"""lockstep.torch.DistributedDataParallel on three ranks: a number of ranks by which averages are rounded."""

import torch
from torch import nn

import ranks
import torch_ddp_test as two
from lockstep.torch import DistributedDataParallel


class ThreeRanks(two.Case):

    def test_close_to_torch_and_equal_on_ranks(self):
        for options in ({}, {'find_unused_parameters': True}, {'gradient_as_bucket_view': True, 'static_graph': True}):
            with self.subTest(**options):
                ours, theirs = self.pair(**options)
                way = (lambda step: (step + two.RANK) % 3) if 'find_unused_parameters' in options else None
                for model in (ours, theirs):
                    two.train(model, way=way)
                self.assert_equal_on_ranks(ours)
                # Torch adds along Gloo's ring, so that sums are rounded otherwise.
                self.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)

    def test_join_of_ranks_that_end_one_after_the_other(self):
        for initial in (True, False):
            ours, theirs = self.pair()
            for model in (ours, theirs):
                with model.join(divide_by_initial_world_size=initial):
                    two.train(model, steps=2 + 2 * two.RANK)
            self.assert_equal_on_ranks(ours)
            self.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)

    def test_averages_over_the_ranks_with_inputs(self):
        module = nn.Linear(1, 1, bias=False)
        ours = DistributedDataParallel(module)
        seen = []
        with ours.join(divide_by_initial_world_size=False):
            for _ in range(1 + two.RANK):
                ours.zero_grad()
                ours(torch.full((1, 1), 6.0 * two.RANK)).sum().backward()
                seen.append(module.weight.grad.item())
        # Of 0, 6 and 12; then of 6 and 12; then of 12.
        torch.testing.assert_close(seen, [6.0, 9.0, 12.0][:1 + two.RANK])

    def test_a_parameter_that_one_rank_uses(self):
        ours = DistributedDataParallel(two.Gate(), find_unused_parameters=True)
        ours(torch.ones(1, 2, requires_grad=True), two.RANK == 1).sum().backward()
        torch.testing.assert_close(ours.module.inner.bias.grad, torch.full((2,), 1 / 3))
        ours.zero_grad()
        ours(torch.ones(1, 2, requires_grad=True), False).sum().backward()
        self.assertIsNone(ours.module.inner.bias.grad)


setUpModule = two.setUpModule

if __name__ == '__main__':
    ranks.main(3)
