"""Benchmarks of drafts: a server with a drafter, and the verification of drafts."""
