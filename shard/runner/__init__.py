"""One forward pass: inputs, model, sampling, CUDA graphs; the exactness gate."""
