"""A callback that compares the ranks' replicas. Mixed into the callback of each package of Lightning's."""

from lockstep.torch import check_replicas


class InCallback:
    """Trainer(callbacks=[lockstep.lightning.CheckReplicas()]): at the end of training epochs, compares the ranks' parameters and the state
    of their optimizers, with any strategy (lockstep.torch.check_replicas). A difference ends the training with a lockstep.DataLoss.
    """

    def __init__(self, every_n_epochs=1):
        self._every_n_epochs = every_n_epochs

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.world_size > 1 and (trainer.current_epoch + 1) % self._every_n_epochs == 0:
            for optimizer in trainer.optimizers or [None]:
                check_replicas(trainer.strategy.model, optimizer)  # as the strategy has wrapped it
