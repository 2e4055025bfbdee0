"""Streaming: read ahead in threads, place rows while they are hot, hand out views."""
