"""Tiny random models of every causal architecture that transformers has, and how tailrace serves them."""
