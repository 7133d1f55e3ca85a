"""Why a run is where it is."""
