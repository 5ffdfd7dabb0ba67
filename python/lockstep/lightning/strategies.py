"""What Lockstep's strategies do otherwise than Lightning's DDPStrategy. Mixed into that of each package of Lightning's."""

from lockstep.torch import DistributedDataParallel

_STARTS = {
    'lockstep': {},
    'lockstep_popen': {'start_method': 'popen'},
    'lockstep_spawn': {'start_method': 'spawn'},
    'lockstep_fork': {'start_method': 'fork'},
    'lockstep_notebook': {'start_method': 'fork'},
}
_NAMES = {**_STARTS, **{f'{name}_find_unused_parameters_true': {**options, 'find_unused_parameters': True}
                        for name, options in _STARTS.items()}}


class _Lockstep:
    def _get_process_group_backend(self):
        return self._process_group_backend or 'lockstep'

    @classmethod
    def register_strategies(cls, registry):
        """Lightning's way to ask a class for its names."""
        for name, options in _NAMES.items():
            registry.register(name, cls, description=f'DDP by Lockstep, {options or "with its defaults"}', override=True, **options)


class InFabric(_Lockstep):
    """Fabric(strategy='lockstep'): DDPStrategy, with Lockstep's DistributedDataParallel and back end.

    Takes DDPStrategy's arguments, and as keywords those of lockstep.torch.DistributedDataParallel:

        Fabric(devices=2, strategy=lockstep.lightning.FabricStrategy(find_unused_parameters=True, bucket_cap_mb=10))
    """

    def setup_module(self, module):
        return DistributedDataParallel(module, device_ids=self._determine_ddp_device_ids(), **self._ddp_kwargs)


class InTrainer(_Lockstep):
    """Trainer(strategy='lockstep'): DDPStrategy, with Lockstep's DistributedDataParallel and back end.

    Takes DDPStrategy's arguments, and as keywords those of lockstep.torch.DistributedDataParallel:

        Trainer(devices=2, strategy=lockstep.lightning.TrainerStrategy(static_graph=True, bucket_cap_mb=10))

    A communication hook works on the CPU, too, where DDPStrategy ignores it.
    """

    def _setup_model(self, model):
        return DistributedDataParallel(model, device_ids=self.determine_ddp_device_ids(), **self._ddp_kwargs)

    def _register_ddp_hooks(self):
        hook = self._ddp_comm_hook
        if hook is not None:
            wrapper = self._ddp_comm_wrapper
            self.model.register_comm_hook(self._ddp_comm_state, hook if wrapper is None else wrapper(hook))

    def training_step(self, *args, **kwargs):
        wrapper = self.model
        if isinstance(wrapper, DistributedDataParallel) and wrapper._changed():
            # A callback has unfrozen parameters (BackboneFinetuning), on every rank.
            wrapper.close()
            self.model = wrapper.module
            self.configure_ddp()
        return super().training_step(*args, **kwargs)

    def pre_backward(self, closure_loss):
        # With manual optimisation the backward pass is inside of the wrapper's forward, which has not seen the loss.
        if isinstance(self.model, DistributedDataParallel) and not self.lightning_module.automatic_optimization:
            self.model.prepare_for_backward(closure_loss)

    def post_backward(self, closure_loss):
        # DDPStrategy has something to do to torch's reducer here, with a static graph.
        pass

    def teardown(self):
        wrapper = self.model
        super().teardown()
        if isinstance(wrapper, DistributedDataParallel):
            # After an exception, too: ranks that wait for this one learn that it has left.
            wrapper.close()
