"""One script of events for every trainer: it resumes with the same samples, or refuses.

    python -m penstock.testing.conformance [NAME | module:engine ...] [--ranks 1 2 3]

A trainer is described by an `Engine`: a program that trains in its way, in real processes. All of
them go through `EVENTS`: accumulation, validation, checkpoints around a chunk's end, a killed
rank, a resume, a second one, a different number of ranks, a different batch size. The samples that
the weights have seen are compared with those of one process that is not interrupted.
"""

from penstock.testing.conformance.launches import Engine, Launch, Run
from penstock.testing.conformance.script import EVENTS, check

__all__ = ["EVENTS", "Engine", "Launch", "Run", "check"]
