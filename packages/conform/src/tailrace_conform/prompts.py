"""Prompts that laws use. They ask for nothing in particular: a law must not depend on what a model knows."""

from __future__ import annotations

PROMPTS: dict[str, str] = {
    "plain": "The quick brown fox",
    "story": "Once upon a time there was a small town by the sea. Every morning",
    "numbers": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "characters": "Emoji and letters from everywhere: 😀 🎉 é ü ß 漢字 かな Привет שלום 👩‍👩‍👧 🇫🇷 and more: 😀 🎉 é ü",
    "long": "The sea was calm and the sky was clear over the old harbour. " * 60,
}
