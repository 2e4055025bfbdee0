"""Audio corpora: windows of files, read as ranges, quantised."""

from penstock.datasets.audio.dataset import QuantizedAudioDataset
from penstock.datasets.audio.files import AudioFile, index_files

__all__ = ["AudioFile", "QuantizedAudioDataset", "index_files"]
