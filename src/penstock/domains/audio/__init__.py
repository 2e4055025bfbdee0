"""Audio corpora: quantised windows of files, and sequence datasets of them."""

from penstock.domains.audio.dataset import AudioDataset as AudioDataset
from penstock.domains.audio.dataset import AudioFile as AudioFile
from penstock.domains.audio.dataset import QuantizedAudioDataset as QuantizedAudioDataset
from penstock.domains.audio.dataset import index_files as index_files
from penstock.domains.audio.sequence import (
    QuantizedAutoregressiveAudio as QuantizedAutoregressiveAudio,
)
from penstock.domains.audio.sequence import (
    SpeechCommands09Autoregressive as SpeechCommands09Autoregressive,
)
