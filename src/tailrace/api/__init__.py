"""Text → HTTP: the OpenAI-compatible front end. Knows the tokenizer and the wire's client; no engine and no tensor."""

from tailrace.base.extras import require_extra

require_extra("serve")
