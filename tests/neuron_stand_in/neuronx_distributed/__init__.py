"""A stand-in for neuronx-distributed 0.18.0, for tests: on CPU, and strict about what is documented of the package.

It "compiles" by keeping the module that was traced, without its weights, and runs it in a process a rank. As with the
package, one rank is traced for all: what a module computes from its rank while it is made is rank 0's everywhere.
"""

import torch_neuronx  # noqa: F401  as the package does

from .trace.model_builder_v2 import ModelBuilder, NxDModel
from .trace.parallel_context import NxDParallelState
from .trace.sharding import shard_checkpoint

STAND_IN = "neuron-cpu"

__all__ = ["STAND_IN", "ModelBuilder", "NxDModel", "NxDParallelState", "shard_checkpoint"]
