"""Who computes the runs of a sweep: spawned processes here, or a Ray cluster.

An engine takes configs and yields messages: ("epoch", id, report) while a run goes on, and once for each run ("end", id, (result, reason)),
where one of both is None, or both if the run is left to another process that is at it.
A process that dies takes its run with it, and no other.
"""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from statemix.sweep.worker import find_measure, perform
from statemix.train import EpochReport, RunConfig, config_from_dict

ERRORS = Console(stderr=True)
Message = tuple[str, str, Any]
Engine = Callable[[list[RunConfig], Path, int, tuple[Path, ...]], Iterator[Message]]


def serve(connection: Connection, runs: Path, files: tuple[Path, ...]) -> None:
    """A worker: one thread, one run after the other, until there are no more, or nobody who asks for them."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    measure = find_measure(files)
    with suppress(
        EOFError, BrokenPipeError, ConnectionResetError
    ):  # the parent was killed; the run's checkpoint is there
        while (data := connection.recv()) is not None:
            config = config_from_dict(data)

            def tell(epoch: EpochReport, id_: str = config.id) -> None:
                connection.send(("epoch", id_, asdict(epoch)))

            connection.send(("end", config.id, perform(config, runs, tell, measure)))


class Worker:
    """A spawned process and the run it is at."""

    def __init__(self, runs: Path, files: tuple[Path, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, runs, files), daemon=True)
        self.process.start()
        theirs.close()
        self.config: RunConfig | None = None

    def give(self, config: RunConfig) -> None:
        self.config = config
        self.connection.send(asdict(config))

    def stop(self) -> None:
        self.process.terminate()
        self.process.join(5)


def run_locally(
    configs: list[RunConfig], runs: Path, workers: int, files: tuple[Path, ...] = ()
) -> Iterator[Message]:
    """As many processes as `workers`, one thread each, which import `files` first."""
    waiting = deque(configs)
    team = [Worker(runs, files) for _ in range(min(workers, len(configs)))]
    try:
        while waiting or any(worker.config for worker in team):
            for i, worker in enumerate(team):
                if worker.config is None and waiting:
                    if not worker.process.is_alive():
                        team[i] = worker = Worker(runs, files)  # noqa: PLW2901
                    worker.give(waiting.popleft())
            busy = {worker.connection: worker for worker in team if worker.config}
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                yield from hear(worker)
    finally:
        for worker in team:
            worker.stop()


def hear(worker: Worker) -> Iterator[Message]:
    """What a worker has to say, or that it died."""
    assert worker.config is not None
    id_ = worker.config.id
    try:
        message = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join(10)
        code = worker.process.exitcode
        death = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        worker.config = None
        yield "end", id_, (None, f"the worker process died ({death})")
        return
    if message[0] == "end":
        worker.config = None
    yield message


def run_on_ray(
    configs: list[RunConfig], runs: Path, workers: int, files: tuple[Path, ...] = ()
) -> Iterator[Message]:
    """Tasks of one CPU each on the Ray cluster that is there, or on a local one of `workers` CPUs."""
    try:
        import ray
    except ImportError as error:
        raise SystemExit(
            "statemix: --engine ray needs Ray. Install it with: pip install 'statemix[ray]'"
        ) from error
    runs = runs.resolve()
    try:
        cluster = ray.init(address="auto", log_to_driver=False)
        ERRORS.print(
            f"joined the Ray cluster at {getattr(cluster, 'address_info', {}).get('address')}; RAY_ADDRESS chooses another",
            markup=False,
        )
    except ConnectionError:
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)

    @ray.remote(num_cpus=1, max_retries=0)
    def task(data: dict[str, Any]) -> tuple[dict[str, Any] | None, str | None]:
        torch.set_num_threads(1)
        return perform(config_from_dict(data), runs, lambda epoch: None, find_measure(files))

    try:
        pending = {task.remote(asdict(config)): config.id for config in configs}
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1)
            id_ = pending.pop(ready[0])
            try:
                yield "end", id_, ray.get(ready[0])
            except ray.exceptions.RayError as error:
                yield "end", id_, (None, f"the Ray task died ({type(error).__name__})")
    finally:
        ray.shutdown()


ENGINES: dict[str, Engine] = {"local": run_locally, "ray": run_on_ray}
