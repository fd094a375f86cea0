from .model_builder import ModelBuilder, NxDModel
from .trace import parallel_model_load, parallel_model_save, parallel_model_trace

__all__ = ["ModelBuilder", "NxDModel", "parallel_model_load", "parallel_model_save", "parallel_model_trace"]
