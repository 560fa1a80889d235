"""JSON schemas, patterns and grammars → the tokens that may come next. See grammar/base.py."""
