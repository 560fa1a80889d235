"""Chat templates: messages → prompt text, by the Jinja programs that models bring along.

`sources` finds them in a folder, `environment` compiles and runs one, `probe` finds out how it wants its messages,
`messages` gives them to it so, and `chat_template` puts these together. What transformers renders for the same input is
the law (docs/templates.md).
"""
