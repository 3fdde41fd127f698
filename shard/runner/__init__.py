"""One forward pass and the choice of tokens: model runner, CUDA graphs, pooling; the exactness gates."""
