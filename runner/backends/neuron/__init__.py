"""transformers on Neuron devices, by neuronx-distributed."""
