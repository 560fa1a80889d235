"""Explains why a token came: the record, its sentences, and the numbers in them."""
