"""JSON schemas, patterns and grammars → which tokens may come next. See grammar/base.py."""
