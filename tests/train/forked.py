"""Processes to kill, each forked from one that has imported everything: seconds cheaper than a new interpreter."""

import math
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import cache
from multiprocessing import forkserver, reduction
from unittest.mock import patch

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["rince.cli", "rince.train.loop", "rince.evaluation.evaluate"])
AS_IT_WAS = dict(os.environ)  # before a test has changed it
# Whoever starts a process looks after all others, too, and who reads that one has ended reads it away from all others:
# one thread at a time.
ONE_AT_A_TIME = threading.Lock()
LOOKS_EVERY = 0.01  # seconds


@cache
def serve():
    """Starts what forks; once, and before there are threads, which would see its environment as their own."""
    with patch.dict(os.environ, AS_IT_WAS, clear=True):
        forkserver.ensure_running()


class Forked:
    """As `subprocess.Popen` of `[python, "-m", "rince", …]` or `[python, "-c", code, …]`, as far as tests need it.

    Args:
        command: with its arguments.
        stdout: a file, or `subprocess.DEVNULL`; ours if None.
        stderr: the same, or `subprocess.PIPE` or `subprocess.STDOUT`.
        env: its environment; ours if None.
        start_new_session: away from our terminal.
        ignores: signals, as under `nohup`.
    """

    def __init__(self, command, *, stdout=None, stderr=None, env=None, start_new_session=False, ignores=()):
        serve()
        self._told, written = os.pipe() if stderr == subprocess.PIPE else (-1, -1)
        with open(os.devnull, "wb") as nowhere:
            places = {subprocess.DEVNULL: nowhere.fileno(), subprocess.PIPE: written, None: None}
            out = places[stdout] if stdout in places else stdout.fileno()
            places |= {subprocess.STDOUT: out}
            err = places[stderr] if stderr in places else stderr.fileno()
            self._process = FORKS.Process(
                target=_Child(out, err, [str(each) for each in command[1:]], env, start_new_session, tuple(ignores))
            )
            with ONE_AT_A_TIME:
                self._process.start()
        if written >= 0:
            os.close(written)
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self.poll()

    def poll(self):
        with ONE_AT_A_TIME:
            return self._process.exitcode

    def wait(self, timeout=math.inf):
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            assert time.monotonic() < until, "it goes on and on"
            time.sleep(LOOKS_EVERY)
        return code

    def communicate(self, timeout=math.inf):
        with open(self._told, encoding="utf-8") as told:
            text = told.read()
        self.wait(timeout)
        return "", text

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


def rince_forked(*arguments, **options):
    """The command line as a fork, to kill."""
    return Forked([sys.executable, "-m", "rince", *arguments], **options)


def two_forked(*arguments, by=rince_forked, **options):
    """Runs something as two processes that know of each other, as torchrun would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "MASTER_PORT": port}
    shared |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "two"}
    both = [
        by(*arguments, env=os.environ | {k: str(v) for k, v in (shared | own).items()}, **options)
        for own in ({"RANK": number, "LOCAL_RANK": number} for number in (0, 1))
    ]
    assert [process.wait(200) for process in both] == [0, 0]


class _Child:
    """What a fork does."""

    def __init__(self, out, err, arguments, env, new_session, ignores):
        self.streams = {1: out, 2: err}
        self.arguments, self.env, self.new_session, self.ignores = (
            arguments,
            dict(env or os.environ),
            new_session,
            ignores,
        )

    def __getstate__(self):  # while it is sent: numbers of files are those of each process
        sent = {number: reduction.DupFd(file) for number, file in self.streams.items() if file is not None}
        return self.__dict__ | {"streams": sent}

    def __call__(self):
        for number, file in self.streams.items():
            os.dup2(file.detach(), number)
        os.environ.clear()
        os.environ.update(self.env)
        if self.new_session:
            os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        for number in self.ignores:
            signal.signal(number, signal.SIG_IGN)
        how, what, *sys.argv[1:] = self.arguments
        if how == "-m":
            assert what == "rince"
            sys.argv[0] = what
            from rince.cli import main  # noqa: PLC0415 - the fork has it

            main()
        else:
            exec(what, {"__name__": "__main__"})
