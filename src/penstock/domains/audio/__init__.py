"""Audio corpora: windows of files, read as ranges, quantised."""

from penstock.domains.audio.dataset import AudioDataset, QuantizedAudioDataset
from penstock.domains.audio.files import AudioFile, index_files
from penstock.domains.audio.sequence import (
    QuantizedAutoregressiveAudio,
    SpeechCommands09Autoregressive,
)
from penstock.domains.audio.speech_commands import SpeechCommands09

__all__ = [
    "AudioDataset",
    "AudioFile",
    "QuantizedAudioDataset",
    "QuantizedAutoregressiveAudio",
    "SpeechCommands09",
    "SpeechCommands09Autoregressive",
    "index_files",
]
