"""A project of a user's own, and commands run in it."""

import pytest

from tests.cli.projects import final_state, new_project


@pytest.fixture
def project(tmp_path):
    """A directory with a configuration and the user's own module."""
    return new_project(tmp_path / "project")


@pytest.fixture(scope="session")
def uninterrupted(commands, tmp_path_factory):
    """A run that nobody disturbed: its project, its state, and the moments it had."""
    project = new_project(tmp_path_factory.mktemp("whole") / "project")
    done = commands(project, "train", "tiny.yaml", DIARY=str(project / "diary"))
    assert done.code == 0, done.err
    return project, final_state(project / "run"), (project / "diary").read_text().split()
