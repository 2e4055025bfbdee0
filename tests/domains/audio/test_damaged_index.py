"""The index of audio files, damaged in any way: the files are looked at again."""

from dataclasses import asdict

from penstock.atomic_files import write_cache
from penstock.domains.audio.dataset import AudioFile, load_index
from tests.damage import DamagedFile


class TestIndex(DamagedFile):
    """What is remembered of audio files: looked at again where it is damaged."""

    name = "index.json"

    def write(self, folder):
        write_cache(folder / self.name, [asdict(AudioFile("a.wav", 10, 8000, 1, 20, 5))])

    def read(self, folder):
        for file in load_index(folder / self.name).values():
            assert file.frames >= 1 and isinstance(file.name, str)
