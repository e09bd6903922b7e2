"""Engines run the cells of a sweep: in spawned processes on this machine, or on a Ray cluster.

An engine takes cells and yields messages:

    ("report", id, metrics)    during a run
    ("busy", id, None)         if another process holds the cell, which is retried after all others
    ("end", id, outcome)       once for each cell, after its run

The cell is claimed until the consumer asks for the next message, so that the line in the ledger is
written under the claim. A process that dies ends its own run only.
"""

import json
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from statemix.extras import install_command
from statemix.sweep.kinds import Config, read_config
from statemix.sweep.ledger import Ledger
from statemix.sweep.worker import BUSY, Outcome, Workspace, attempted, find_measure

__all__ = ["ENGINES", "Worker", "run_locally", "serve"]

Message = tuple[str, str, Any]
Engine = Callable[[Sequence[Config], Workspace, int], Iterator[Message]]


def serve(connection: Connection, workspace: Workspace) -> None:
    """A worker process: one thread, one run after the other, until the parent ends or says None."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts
    _end_with_parent()
    measure = find_measure(workspace.files)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent was killed
        while (request := connection.recv()) is not None:
            config = read_config(json.loads(request[0]))

            def send(report: dict[str, Any], id_: str = config.id) -> None:
                connection.send(("report", id_, report))

            with attempted(config, workspace, send, measure, wait=request[1]) as outcome:
                connection.send(("end", config.id, outcome))
                connection.recv()  # the parent has written the ledger


def _end_with_parent() -> None:
    """Exit as soon as the parent process ends, even if it is killed, and so release all locks."""
    parent = multiprocessing.parent_process()
    if parent is not None:

        def watch() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()


class Worker:
    """A spawned process and the cell that it runs."""

    def __init__(self, workspace: Workspace) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, workspace), daemon=True)
        self.process.start()
        theirs.close()
        self.config: Config | None = None

    def send(self, config: Config, *, wait: bool) -> None:
        """Have the worker run a cell; with `wait`, after another process that holds it."""
        self.config = config
        with suppress(BrokenPipeError):  # it died; `receive` reports it
            self.connection.send((config.to_json(), wait))

    def receive(self) -> Message:
        """The worker's next message, or the end of its run if the process died."""
        assert self.config is not None
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(10)
            code = self.process.exitcode
            death = f"exit code {code}"
            if code is not None and code < 0:
                death = signal.Signals(-code).name
            return "end", self.config.id, (None, f"the worker process died ({death})")

    def release(self) -> None:
        """End the worker's claim on its cell."""
        self.config = None
        with suppress(BrokenPipeError):
            self.connection.send(None)

    def stop(self) -> None:
        """End the process: at once, or after it has released its claim if it runs no cell."""
        if self.config is None:
            with suppress(BrokenPipeError):
                self.connection.send(None)
            self.process.join(5)
        self.process.terminate()
        self.process.join(5)


def run_locally(configs: Sequence[Config], workspace: Workspace, workers: int) -> Iterator[Message]:
    """Run the cells in up to `workers` processes of one thread each."""
    queue = deque((config, False) for config in configs)
    team = [Worker(workspace) for _ in range(min(workers, len(configs)))]
    try:
        while queue or any(worker.config for worker in team):
            for i, worker in enumerate(team):
                if worker.config is None and queue:
                    if not worker.process.is_alive():
                        team[i] = Worker(workspace)
                    config, waits = queue.popleft()
                    team[i].send(config, wait=waits)
            busy = {worker.connection: worker for worker in team if worker.config}
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                kind, id_, content = worker.receive()
                if kind == "end" and content == BUSY:
                    assert worker.config is not None
                    queue.append((worker.config, True))
                    yield "busy", id_, None
                else:
                    yield kind, id_, content
                if kind == "end":
                    worker.release()
    finally:
        for worker in team:
            worker.stop()


def _run_on_ray(configs: Sequence[Config], workspace: Workspace, workers: int) -> Iterator[Message]:
    """Run the cells as Ray tasks of one CPU each, on the running cluster or a local one.

    A task's claim ends with the task; the ledger refuses a second line in any case.
    """
    try:
        import ray
    except ImportError as error:
        raise SystemExit(
            f"statemix: --engine ray needs Ray. Install it with: {install_command('ray')}"
        ) from error
    try:
        cluster = ray.init(address="auto", log_to_driver=False)
        address = getattr(cluster, "address_info", {}).get("address")
        yield "warning", "", f"Joined the Ray cluster at {address}; RAY_ADDRESS chooses another."
    except ConnectionError:
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)

    ledger = Ledger(workspace.ledger.path.resolve())
    runs = workspace.runs.resolve()
    workspace = Workspace(ledger, runs, workspace.data.resolve(), workspace.files)

    @ray.remote(num_cpus=1, max_retries=0)
    def task(text: str, waits: bool) -> Outcome:
        torch.set_num_threads(1)
        config = read_config(json.loads(text))
        measure = find_measure(workspace.files)
        with attempted(config, workspace, lambda report: None, measure, wait=waits) as outcome:
            return outcome

    try:
        pending = {task.remote(config.to_json(), False): config for config in configs}
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1)
            config = pending.pop(ready[0])
            try:
                outcome = ray.get(ready[0])
            except ray.exceptions.RayError as error:
                outcome = (None, f"the Ray task died ({type(error).__name__})")
            if outcome == BUSY:
                pending[task.remote(config.to_json(), True)] = config
                yield "busy", config.id, None
            else:
                yield "end", config.id, outcome
    finally:
        ray.shutdown()


ENGINES: dict[str, Engine] = {"local": run_locally, "ray": _run_on_ray}
