"""Chat templates: messages → prompt text, by the Jinja programs in models' folders.

`sources` finds the templates in a folder, `environment` compiles and runs one, and `probe` finds out which forms of
messages it takes. `messages` brings messages into these forms, and `chat_template` puts all parts together. The result
must equal transformers' output for the same input (docs/templates.md).
"""
