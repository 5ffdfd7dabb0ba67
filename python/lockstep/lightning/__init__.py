"""Lockstep in Lightning: strategies for Fabric and the Trainer, by name once this is imported.

    import lockstep.lightning
    fabric = Fabric(accelerator='cpu', devices=2, strategy='lockstep')
    trainer = Trainer(accelerator='cpu', devices=2, strategy='lockstep')

Names: lockstep, lockstep_popen, lockstep_spawn, lockstep_fork, lockstep_notebook, and each of them with _find_unused_parameters_true. With
options:
strategy=lockstep.lightning.FabricStrategy(...), strategy=lockstep.lightning.TrainerStrategy(...). Each is Lightning's DDPStrategy but for
what wraps the model. CheckReplicas is a callback that compares the ranks' replicas.

Of the packages lightning, lightning_fabric and pytorch_lightning all that are installed know the names. The two classes are for
`lightning`, and for the others if it is not installed.

ImportError  no package of Lightning's is there, or only older ones
"""

import importlib

from lockstep.lightning.replicas import InCallback as _InCallback
from lockstep.lightning.strategies import InFabric as _InFabric, InTrainer as _InTrainer

_LEAST = '2.5'
_found = {}  # the version of each package


def _release(version):
    return [int(part) for part in version.split('.')[:2]]


def _strategy(name, changes, package, registry):
    """The strategy for a package of Lightning's, which then knows its names; None if there is no such package or it is too old."""
    root = package.partition('.')[0]
    try:
        _found[root] = importlib.import_module(root).__version__
        if _release(_found[root]) < _release(_LEAST):
            return None
        strategies = importlib.import_module(package + '.strategies')
    except ModuleNotFoundError as error:
        if error.name not in (root, package):
            raise
        return None
    # Processes that are spawned find the class by its name.
    made = type(name, (changes, strategies.DDPStrategy), {'__module__': __name__, '__doc__': changes.__doc__})
    made.register_strategies(getattr(strategies, registry))
    return made


def _callback():
    """CheckReplicas for the package of TrainerStrategy; None without one."""
    if TrainerStrategy is None:
        return None
    package = importlib.import_module('pytorch_lightning' if TrainerStrategy is _SplitTrainerStrategy else 'lightning.pytorch')
    return type('CheckReplicas', (_InCallback, package.Callback), {'__module__': __name__, '__doc__': _InCallback.__doc__})


FabricStrategy = _strategy('FabricStrategy', _InFabric, 'lightning.fabric', 'STRATEGY_REGISTRY')
TrainerStrategy = _strategy('TrainerStrategy', _InTrainer, 'lightning.pytorch', 'StrategyRegistry')
_SplitFabricStrategy = _strategy('_SplitFabricStrategy', _InFabric, 'lightning_fabric', 'STRATEGY_REGISTRY')
_SplitTrainerStrategy = _strategy('_SplitTrainerStrategy', _InTrainer, 'pytorch_lightning', 'StrategyRegistry')
FabricStrategy = FabricStrategy or _SplitFabricStrategy
TrainerStrategy = TrainerStrategy or _SplitTrainerStrategy
CheckReplicas = _callback()
if FabricStrategy is None and TrainerStrategy is None:
    raise ImportError(f"lockstep.lightning needs Lightning {_LEAST} or later; there is "
                      + (', '.join(f'{root} {version}' for root, version in _found.items()) or 'none')
                      + f": pip install 'lightning>={_LEAST}'")
