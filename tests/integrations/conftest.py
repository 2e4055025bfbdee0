"""Programs run in forks of a process that has imported everything."""

from tests.cli.conftest import commands as commands
