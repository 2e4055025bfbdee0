"""A trainer that loses the place of its loader, and one that loses a validation: for tests.

python forgetful.py --json RESULTS
"""

import sys

from penstock.testing.conformance import Engine
from penstock.testing.conformance.__main__ import main
from penstock.testing.conformance.launches import forever


def forget(run):
    """Resume at the beginning."""
    loader = run.make_loader()
    for batch in forever(loader):
        run.trained(batch)
        if run.done:
            break
    loader.close()


def score_half(run):
    for batch in list(run.make_validation())[:1]:
        run.scored(batch)
    forget(run)


engine = Engine("forgetful", forget)
careless = Engine("careless", score_half)

if __name__ == "__main__":
    options = ["--ranks", "1", "--loaders", "chunked", "--events", "uninterrupted", "end"]
    sys.exit(main(["__main__:engine", "__main__:careless", *options, *sys.argv[1:]]))
