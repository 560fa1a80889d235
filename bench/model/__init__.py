"""Benchmarks of the forward pass and its kernels, and programs that write models of random weights."""
