from penstock.domains.spectrograms.folder import MOST_CLASSES as MOST_CLASSES
from penstock.domains.spectrograms.folder import SpectrogramFolder as SpectrogramFolder
from penstock.domains.spectrograms.folder import read_pixel_table as read_pixel_table
