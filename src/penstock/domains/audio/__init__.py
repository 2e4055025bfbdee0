"""Audio corpora: quantised windows of files, and sequence datasets of them."""

from penstock.domains.audio.dataset import AudioDataset, QuantizedAudioDataset
from penstock.domains.audio.files import AudioFile, index_files
from penstock.domains.audio.sequence import QuantizedAutoregressiveAudio
from penstock.domains.audio.speech_commands import (
    SpeechCommands09,
    SpeechCommands09Autoregressive,
)

__all__ = [
    "AudioDataset",
    "AudioFile",
    "QuantizedAudioDataset",
    "QuantizedAutoregressiveAudio",
    "SpeechCommands09",
    "SpeechCommands09Autoregressive",
    "index_files",
]
