"""Tables of spectrograms, damaged in any way: read, or refused with the file's name."""

import numpy as np

import penstock
from tests.damage import DamagedFile


class TestMetadata(DamagedFile):
    """The table of a folder of spectrograms."""

    name = "metadata.csv"

    def write(self, folder):
        for name in "ab":
            np.save(folder / f"{name}.npy", np.zeros((2, 3), np.float32))
        text = "filename,class_id,author,original_audio\na.npy,0,me,x\nb.npy,1,you,y\n"
        (folder / self.name).write_text(text)

    def read(self, folder):
        dataset = penstock.SpectrogramFolder(folder)
        assert 0 <= dataset.labels.min() and len(dataset.authors) == len(dataset)


class TestPixels(DamagedFile):
    """A table of pixels."""

    name = "pixels.csv"

    def write(self, folder):
        (folder / self.name).write_text("label,author,p0,p1\n0,me,1,255\n1,you,0,2\n")

    def read(self, folder):
        table = penstock.read_pixel_table(folder / self.name, (1, 2))
        assert (table.features >= 0).all() and (table.features <= 1).all()
