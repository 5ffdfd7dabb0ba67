"""What a module looked like when it was wrapped, and what has changed since."""

import torch


class Layout:
    """The parameters of a module. They may get other names, as by torch.nn.utils.prune."""

    def __init__(self, module, averaged, ignored, full):
        """averaged: the names of the parameters that are averaged; ignored: names that are not compared. full: Precision.full()."""
        parameters = dict(module.named_parameters())
        self._averaged, self._ignored = {id(parameters[name]) for name in averaged}, ignored
        self.accept(module, full)

    def accept(self, module, full):
        """From now on the module is right as it is."""
        self._module = module
        self._then = {name: (parameter, full.get(id(parameter), parameter).dtype, parameter.device)
                      for name, parameter in module.named_parameters()}
        self._frozen = [parameter for name, (parameter, _, _) in self._then.items()
                        if id(parameter) not in self._averaged and name not in self._ignored]
        # What is quick to compare.
        self._parts = [(part._parameters, [*map(id, part._parameters.values())], part._modules, [*part._modules.values()], part._buffers,
                        len(part._buffers)) for part in module.modules()]

    def is_as_it_was(self, module):
        """A quick look: False if something may have changed."""
        for parameters, ids, modules, those, buffers, buffer_count in self._parts:
            if [*modules.values()] != those or len(buffers) != buffer_count or [*map(id, parameters.values())] != ids:
                return False
        return module is self._module and not any(parameter.requires_grad for parameter in self._frozen)

    def is_substituted(self):
        """Whether torch.func.functional_call has put other tensors in the place of parameters."""
        return any(not isinstance(parameter, torch.nn.Parameter) for _, parameter in self._module.named_parameters())

    def what_changed(self, module):
        """What makes averaging wrong or impossible, in words; None if nothing does. Parts without parameters may come and go."""
        now = dict(module.named_parameters())
        ids = {*map(id, now.values())}
        then = {id(parameter): form for parameter, *form in self._then.values()}
        found = []
        for name, parameter in now.items():
            if name in self._ignored:
                continue
            if id(parameter) not in then:
                found.append(f"parameter '{name}' is {'another one' if name in self._then else 'new'}")
            elif parameter.requires_grad != (id(parameter) in self._averaged):
                found.append(f"parameter '{name}' {'requires a gradient now' if parameter.requires_grad else 'is frozen now'}")
            elif [parameter.dtype, parameter.device] != then[id(parameter)]:
                found.append(f"parameter '{name}' is {parameter.dtype} on {parameter.device} now")
        # In the place of one with _st_info, the first forward pass of tensor parallelism puts a DTensor of the same memory.
        found += [f"parameter '{name}' is gone" for name, (parameter, _, _) in self._then.items()
                  if name not in now and id(parameter) not in ids and name not in self._ignored and not hasattr(parameter, '_st_info')]
        return '; '.join(found) or None
