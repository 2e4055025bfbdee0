"""Streaming: read ahead in threads, place rows while they are in cache, hand out views."""
