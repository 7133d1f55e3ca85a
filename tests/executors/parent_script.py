"""A parent to be killed in the midst of a call."""

import asyncio
import sys

import executor_bodies as bodies

from stepwell.executors.process import ProcessExecutor

body = bodies.defined(bodies.hang_with_a_child)
asyncio.run(ProcessExecutor(1).run(body, body.input(sys.argv[1])))
