from __future__ import annotations

from ..only import only
from ..parallel_layers import parallel_state


class NxDParallelState:
    @only("world_size", "tensor_model_parallel_size", "lnc_size")
    def __init__(
        self,
        world_size=1,
        rank=0,
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
        context_parallel_size=1,
        expert_model_parallel_size=1,
        lnc_size=None,
    ):
        if world_size != tensor_model_parallel_size:
            raise NotImplementedError("the stand-in knows tensor parallelism only")
        self.state = parallel_state.tracing(tensor_model_parallel_size)

    def __enter__(self):
        self.state.__enter__()
        return self

    def __exit__(self, exc_type, exc_val, exc_tb):
        return self.state.__exit__(exc_type, exc_val, exc_tb)
