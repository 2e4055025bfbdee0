from penstock.domains.spectrograms.folder import MAX_CLASSES as MAX_CLASSES
from penstock.domains.spectrograms.folder import SpectrogramFolder as SpectrogramFolder
from penstock.domains.spectrograms.folder import read_pixel_table as read_pixel_table
