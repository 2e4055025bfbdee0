"""Streaming: read blocks ahead in threads, write rows into batches, hand out views."""
