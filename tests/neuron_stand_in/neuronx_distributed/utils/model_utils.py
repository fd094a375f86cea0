from __future__ import annotations

from contextlib import contextmanager

from torch import nn

from ..only import only


@contextmanager
@only("device", "force_custom_init_on_device")
def init_on_device(device, include_buffers=False, force_custom_init_on_device=False):
    """Parameters that are made within are put on `device`; buffers stay."""
    register = nn.Module.register_parameter

    def register_there(module, name, parameter):
        register(module, name, parameter)
        if parameter is not None and parameter.device != device:
            moved = type(parameter)(parameter.to(device), requires_grad=parameter.requires_grad, **parameter.__dict__)
            module._parameters[name] = moved

    nn.Module.register_parameter = register_there
    try:
        yield
    finally:
        nn.Module.register_parameter = register
