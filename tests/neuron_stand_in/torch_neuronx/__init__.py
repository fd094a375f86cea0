"""A stand-in for torch-neuronx. Importing it lets torch.jit.load know its files, as the real one does its classes."""

import torch
from neuronx_distributed import files

STAND_IN = "neuron-cpu"
__version__ = "2.9.0+standin"

if torch.jit.load is not files.load:
    torch.jit.load = files.load
