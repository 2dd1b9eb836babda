"""Texts as token ids: tokenizers, chat templates, prompts, replies, the end of a turn."""
