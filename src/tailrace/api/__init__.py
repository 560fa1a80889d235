"""Text → HTTP: the OpenAI-compatible front end. Knows the tokenizer and the wire's client; no engine and no tensor."""

from tailrace.extras import needs

needs("serve")
