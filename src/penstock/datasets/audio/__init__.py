"""Audio corpora: windows of files, read as ranges, quantised."""

from penstock.datasets.audio.dataset import AudioDataset, QuantizedAudioDataset
from penstock.datasets.audio.files import AudioFile, index_files
from penstock.datasets.audio.speech_commands import SpeechCommands09

__all__ = [
    "AudioDataset",
    "AudioFile",
    "QuantizedAudioDataset",
    "SpeechCommands09",
    "index_files",
]
