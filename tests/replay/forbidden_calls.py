"""One of each call that a workflow must not make, with what the refusal says: what it is, or what to write instead."""

# ruff: noqa: SIM115  # what is opened here is refused

from __future__ import annotations

import concurrent.futures
import datetime as dates
import glob
import http.client
import io
import json
import multiprocessing
import os
import random
import secrets
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__)

ALWAYS: dict[str, tuple[str, Callable[[], Any]]] = {
    "open": ("files", lambda: open(HERE)),
    "open to write": ("files", lambda: open("/tmp/never", "w")),
    "io.open": ("files", lambda: io.open(HERE)),  # noqa: UP020
    "os.open": ("files", lambda: os.open(HERE, os.O_RDONLY)),
    "Path.read_text": ("files", lambda: HERE.read_text()),
    "Path.write_text": ("files", lambda: Path("/tmp/never").write_text("")),
    "json.load": ("files", lambda: json.load(open(HERE))),
    "os.listdir": ("files", lambda: os.listdir("/")),
    "os.walk": ("files", lambda: list(os.walk("/tmp/none"))),
    "os.remove": ("files", lambda: os.remove("/tmp/never")),
    "os.mkdir": ("files", lambda: os.mkdir("/tmp/never")),
    "glob": ("files", lambda: glob.glob("/tmp/*")),
    "shutil.copy": ("files", lambda: shutil.copy(HERE, "/tmp/never")),
    "tempfile": ("files", lambda: tempfile.NamedTemporaryFile()),
    "tempfile.mkdtemp": ("files", lambda: tempfile.mkdtemp()),
    "sqlite3": ("files", lambda: sqlite3.connect(":memory:")),
    "socket": ("sockets", lambda: socket.socket()),
    "create_connection": ("sockets", lambda: socket.create_connection(("127.0.0.1", 1))),
    "getaddrinfo": ("sockets", lambda: socket.getaddrinfo("localhost", 1)),
    "gethostname": ("sockets", lambda: socket.gethostname()),
    "urlopen": ("sockets", lambda: urllib.request.urlopen("http://127.0.0.1:1/")),
    "http.client": ("sockets", lambda: http.client.HTTPConnection("127.0.0.1", 1).request("GET", "/")),
    "subprocess.run": ("processes", lambda: subprocess.run(["true"])),
    "subprocess.Popen": ("processes", lambda: subprocess.Popen(["true"])),
    "os.system": ("processes", lambda: os.system("true")),
    "os.popen": ("processes", lambda: os.popen("true")),
    "os.fork": ("processes", lambda: os.fork()),
    "os.posix_spawn": ("processes", lambda: os.posix_spawn("/bin/true", ["true"], {})),
    "multiprocessing": (
        "processes",
        lambda: multiprocessing.get_context("fork").Process(target=print).start(),
    ),
    "Thread": ("threads", lambda: threading.Thread(target=print).start()),
    "Timer": ("threads", lambda: threading.Timer(0, print).start()),
    "ThreadPoolExecutor": ("threads", lambda: concurrent.futures.ThreadPoolExecutor().submit(print)),
}

CLOCKS: dict[str, tuple[str, Callable[[], Any]]] = {
    "time": ("workflow.now()", lambda: time.time()),
    "time_ns": ("workflow.now()", lambda: time.time_ns()),
    "monotonic": ("workflow.now()", lambda: time.monotonic()),
    "monotonic_ns": ("workflow.now()", lambda: time.monotonic_ns()),
    "perf_counter": ("workflow.now()", lambda: time.perf_counter()),
    "process_time": ("workflow.now()", lambda: time.process_time()),
    "sleep": ("await asyncio.sleep(…)", lambda: time.sleep(0)),
    "datetime.now": ("workflow.now()", lambda: datetime.now(UTC)),
    "datetime.now by another name": ("workflow.now()", lambda: dates.datetime.now()),
    "datetime.utcnow": ("workflow.now()", lambda: datetime.utcnow()),
    "datetime.today": ("workflow.now()", lambda: datetime.today()),
    "date.today": ("workflow.now()", lambda: date.today()),
    "random": ("workflow.random.random(…)", lambda: random.random()),
    "randint": ("workflow.random.randint(…)", lambda: random.randint(1, 2)),
    "choice": ("workflow.random.choice(…)", lambda: random.choice([1])),
    "choices": ("workflow.random.choices(…)", lambda: random.choices([1])),
    "shuffle": ("workflow.random.shuffle(…)", lambda: random.shuffle([1])),
    "sample": ("workflow.random.sample(…)", lambda: random.sample([1], 1)),
    "uniform": ("workflow.random.uniform(…)", lambda: random.uniform(1, 2)),
    "gauss": ("workflow.random.gauss(…)", lambda: random.gauss()),
    "getrandbits": ("workflow.random.getrandbits(…)", lambda: random.getrandbits(8)),
    "randbytes": ("workflow.random.randbytes(…)", lambda: random.randbytes(8)),
    "seed": ("workflow.random.seed(…)", lambda: random.seed(1)),
    "Random()": ("workflow.random, or Random(seed)", lambda: random.Random()),
    "SystemRandom": ("workflow.random", lambda: random.SystemRandom().random()),
    "urandom": ("a step", lambda: os.urandom(8)),
    "token_bytes": ("a step", lambda: secrets.token_bytes()),
    "token_hex": ("a step", lambda: secrets.token_hex()),
    "token_urlsafe": ("a step", lambda: secrets.token_urlsafe()),
    "randbelow": ("a step", lambda: secrets.randbelow(3)),
    "secrets.choice": ("workflow.random", lambda: secrets.choice([1])),
    "randbits": ("workflow.random", lambda: secrets.randbits(3)),
    "uuid1": ("workflow.uuid()", lambda: uuid.uuid1()),
    "uuid4": ("workflow.uuid()", lambda: uuid.uuid4()),
    "getpid": ("workflow.info().id", lambda: os.getpid()),
}
