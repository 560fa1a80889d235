"""Response templates: parsers of answers that come with a checkpoint, in its tokenizer_config.json."""
