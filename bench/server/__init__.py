"""Benchmarks of whole servers over HTTP, and of the front end alone."""
