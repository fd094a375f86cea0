"""ONNX Runtime GenAI."""
