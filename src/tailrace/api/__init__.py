"""Text → SSE over HTTP, in OpenAI's shapes. Imports no torch; meets the engine only through a wire client."""
