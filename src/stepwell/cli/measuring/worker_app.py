"""The app that the workers of `stepwell bench` run. Its database and schema are in their environment."""

from __future__ import annotations

from stepwell.app import App
from stepwell.cli.measuring.tasks import define

app = App()
define(app)
