"""Campaigns of kills, interrupts, changing ranks and reopening: long runs of random trials.

    python -m tests.campaigns run             every trial, as `make proof` runs it
    python -m tests.campaigns run --sample    a random sample in about a minute, as CI runs it
    python -m tests.campaigns page            write docs/reliability.md from the recorded results
    python -m tests.campaigns flaky           repeat tests that depend on time, on a busy machine

One parent process imports torch and Penstock once and starts no thread. Every trial is a fork of
it: a process of its own, in a session of its own, that is killed within a few hundred ms.
"""
