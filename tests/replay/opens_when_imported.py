"""A module that reads a file and asks for the time when it is imported."""

import time
from pathlib import Path

TEXT = Path(__file__).read_text()
LOADED = time.time()
