"""Work through a corpus in blocks of episodes: in threads and processes of this machine, or on a cluster by Ray Data.

Which episodes are in a block depends only on the data. A worker computes a block's content with one torch thread, and
writes it as one file of a locked folder (see `counterpoint.folder`). So a block has the same bytes wherever it is
computed, a block that is computed twice is written once, and a run that was killed can be resumed.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Any, Literal

from tyro.conf import arg

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError, import_extra, refused_by_the_system, require
from counterpoint.folder import digests_of, mend, write_part
from counterpoint.parameter_types import Number
from counterpoint.progress import ProgressBar
from counterpoint.workers import worker_pool

THREADS = 8
"""Maximum number of threads per process: Python's global lock keeps more threads from decoding at the same time."""
SMALLEST, LARGEST, AIM = 256, 8192, 64
"""A block is full at 1/`AIM` of the corpus's frames, but at least at `SMALLEST` and at most at `LARGEST` frames."""
ATTEMPTS = 4
"""Maximum number of Ray workers that may die while computing one block; then the block is taken to be the cause."""
TASKS = 10_000
"""Maximum number of Ray tasks; in a corpus with more blocks, one task has several blocks."""
WAIT = 30.0
"""Maximum time in seconds to wait for Ray Data's thread to end; it usually takes one or two seconds."""


@dataclass(frozen=True)
class Block:
    """A range of consecutive episodes, which is computed as one unit of work.

    Attributes:
        number: Index of this block among all blocks.
        first: Index of the first episode.
        end: Index of the last episode, plus 1.
        frames: Number of frames of these episodes.
    """

    number: int
    first: int
    end: int
    frames: int

    @property
    def episodes(self) -> range:
        """The indices of the episodes."""
        return range(self.first, self.end)


def blocks_of(lengths: Array) -> tuple[Block, ...]:
    """Divide episodes of these lengths [E] into blocks; each block ends with the episode that fills it."""
    full = min(LARGEST, max(SMALLEST, int(lengths.sum()) // AIM))
    found: list[Block] = []
    first = frames = 0
    for episode, length in enumerate(lengths.tolist()):
        frames += length
        if frames >= full or episode == len(lengths) - 1:
            found.append(Block(len(found), first, episode + 1, frames))
            first, frames = episode + 1, 0
    return tuple(found)


Work = Callable[[Block], bytes]
"""A function that computes a block and returns the content of its file."""
Opener = Callable[[], Work]
"""A picklable function that opens model and data in a worker process, and returns the worker's `Work`."""


@dataclass(frozen=True)
class BlockFiles:
    """The files that hold the results of a corpus's blocks, one file per block.

    Attributes:
        root: The locked folder that holds the files (see `counterpoint.folder`).
        suffix: End of the files' names.
        blocks: All blocks.
    """

    root: Path
    suffix: str
    blocks: tuple[Block, ...]

    @property
    def folder(self) -> Path:
        """The folder of the files, which holds nothing else."""
        return self.root / "blocks"

    def name(self, block: Block) -> str:
        """Return the name of a block's file within `root`."""
        return f"blocks/block-{block.number:06d}{self.suffix}"

    def path(self, block: Block) -> Path:
        """Return the file of a block."""
        return self.root / self.name(block)

    def left(self) -> list[Block]:
        """Return the blocks that have no complete file yet."""
        whole = mend(self.root)
        return [block for block in self.blocks if self.name(block) not in whole]

    def begin(self, block: Block) -> None:
        """Record that a worker begins a block, so that deaths of workers over this block can be counted.

        Raises:
            BadInputError: If too many workers have died while computing the block.
        """
        for attempt in range(ATTEMPTS):
            note = self.folder / f".{self.path(block).name}.attempt-{attempt}"
            with suppress(FileExistsError):
                note.touch(exist_ok=False)
                return
        where = f"episodes {block.first} to {block.end - 1}"
        hint = "run the same again to continue, on fewer workers if memory was short; or leave these episodes out"
        raise BadInputError(where, f"{ATTEMPTS} workers that died over them", "workers that live", hint)

    def clean(self) -> None:
        """Remove the files that killed workers left."""
        for leftover in self.folder.glob(".block-*"):
            leftover.unlink(missing_ok=True)

    def check(self) -> None:
        """Require a complete file for every block, and no other files.

        Raises:
            BadInputError: If a file is missing or damaged, or belongs to no block.
        """
        whole, wanted = mend(self.root), {self.path(block): self.name(block) for block in self.blocks}
        found = {path for path in self.folder.iterdir() if path not in wanted or wanted[path] in whole}
        odd = min(found ^ wanted.keys(), default=self.folder)
        hint = "move files that are not ours, and run the same command again"
        where, expected = "no whole file" if odd in wanted else "another file", f"the files of {len(wanted)} blocks"
        require(found == wanted.keys(), odd, where, expected, hint)


@dataclass(frozen=True)
class Engine:
    """The processes that compute blocks.

    Attributes:
        name: Executor: `single` uses processes of this machine with several threads each, `ray` uses workers of Ray
            Data on a cluster (needs the extra `ray`).
        workers: Number of processes, which share the processor's cores; by default one process, or with `ray` one per
            core.
        address: Address of Ray's cluster, HOST:PORT or auto; without one, `ray` uses processes of this machine too,
            which are faster there than Ray.
    """

    name: Annotated[Literal["single", "ray"], arg(name="engine")] = "single"
    workers: Number = None
    address: Annotated[str | None, arg(metavar="HOST:PORT")] = None

    def check(self) -> None:
        """Raise an error for settings that cannot work, before long work begins.

        Raises:
            BadInputError: If there are no workers, an address is given without Ray, or nothing answers at the address.
            MissingExtraError: If Ray is not installed.
        """
        require(self.name in ("single", "ray"), "--engine", repr(self.name), "single or ray", "choose one")
        require(self.workers is None or self.workers > 0, "--workers", self.workers, "1 or more", "leave it out")
        if self.name == "single":
            hint = "add --engine ray, or leave it out"
            require(self.address is None, "--address", repr(self.address), "none, without Ray", hint)
            return
        import_extra("ray.data", "ray")
        if self.address not in (None, "auto"):
            host, _, port = str(self.address).rpartition(":")
            where, expected = f"cluster {self.address}", "HOST:PORT of a running cluster"
            require(host and port.isdigit(), where, "no address", expected, "`ray start --head` prints it")
            try:
                socket.create_connection((host, int(port)), timeout=10).close()
            except OSError as error:
                hint = "start it with `ray start --head`, or leave --address out"
                raise BadInputError(where, f"nothing that answers ({error})", expected, hint) from None


HERE = Engine()
"""The default engine: a thread pool of this process."""


def work_through(
    files: BlockFiles, work: Work, opener: Opener, engine: Engine, *, title: str, device: str = "cpu"
) -> int:
    """Compute the blocks that have no file yet, with a progress bar; return their number of frames.

    Args:
        files: All blocks.
        work: Computes a block in this process, with the model and data that this process has opened.
        opener: Opens model and data in other processes and returns their `work`.
        engine: The processes that compute.
        title: Name of the work on the progress bar.
        device: The device that computes; on CUDA each of Ray's workers has a GPU.

    Raises:
        BadInputError: If `work` raises it, or too many workers died while computing one block, or at the end a block's
            file is missing or a file belongs to no block.
    """
    todo = files.left()
    left, total = (sum(block.frames for block in blocks) for blocks in (todo, files.blocks))
    files.folder.mkdir(parents=True, exist_ok=True)
    files.clean()
    on_cluster = engine.address is not None and len(todo) > 0
    workers = min(engine.workers or (_cores() if engine.name == "ray" else 1), len(todo))
    shorten = "--device cuda" if device == "cpu" and _has_gpu() else ""
    with ProgressBar(title, total, "frames", done=total - left, shorten=shorten) as bar:
        if on_cluster:
            finished = _on_ray(files, opener, engine, todo, device)
        elif workers > 1:
            finished = _in_processes(files, opener, workers, todo)
        else:
            finished = _in_threads(files, work, todo, _torch_threads())
        for frames in finished:
            bar.advance(frames)
    files.clean()
    files.check()
    return left


def _finish(files: BlockFiles, work: Work, block: Block) -> int:
    """Write a block's file unless it exists; return the block's number of frames. All engines call this function."""
    name = files.name(block)
    if not files.path(block).is_file() or name not in digests_of(files.root):
        write_part(files.root, name, work(block))
    return block.frames


def _in_threads(files: BlockFiles, work: Work, blocks: Sequence[Block], cores: int) -> Iterator[int]:
    waiting, finished = deque(blocks), SimpleQueue[int | None]()
    threads = max(1, min(cores, THREADS, len(blocks)))

    def run() -> None:
        try:
            with suppress(IndexError):
                while True:
                    finished.put(_finish(files, work, waiting.popleft()))
        finally:
            finished.put(None)

    with one_torch_thread(), ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(run) for _ in range(threads)]
        try:
            for _ in running:
                while (frames := finished.get()) is not None:
                    yield frames
            for one in running:
                one.result()
        finally:
            waiting.clear()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let torch compute with one thread, since the number of threads may change the last bits of a sum."""
    before = _torch_threads()
    _set_torch_threads(1)
    try:
        yield
    finally:
        _set_torch_threads(before)


def _has_gpu() -> bool:
    import torch  # slow to load, and needed only by work

    return torch.cuda.is_available()


def _torch_threads() -> int:
    import torch

    return torch.get_num_threads()


def _set_torch_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)


def _in_processes(files: BlockFiles, opener: Opener, workers: int, blocks: Sequence[Block]) -> Iterator[int]:
    cores = max(1, _torch_threads() // workers)
    each = min(cores, THREADS)
    groups = [blocks[first : first + each] for first in range(0, len(blocks), each)]
    with worker_pool(workers, _enter, files, opener, cores) as pool:
        for finished in as_completed([pool.submit(_work_group, group) for group in groups]):
            yield finished.result()


_entered: list[tuple[BlockFiles, Work, int]] = []
"""This worker process's files, work and number of cores, set by `_enter`."""


def _enter(files: BlockFiles, opener: Opener, cores: int) -> None:
    _set_torch_threads(1)
    _entered.append((files, opener(), cores))


def _work_group(blocks: Sequence[Block]) -> int:
    files, work, cores = _entered[0]
    return sum(_in_threads(files, work, blocks, cores))


class RayWorker:
    """A worker of Ray Data; each call computes one block.

    Args:
        files: All blocks.
        opener: Opens model and data.
        folder: The caller's working folder, to which relative paths belong.
    """

    def __init__(self, files: BlockFiles, opener: Opener, folder: Path) -> None:
        _set_torch_threads(1)
        with suppress(FileNotFoundError):  # a machine without the folder gets absolute paths
            os.chdir(folder)
        self.files, self.opener = files, opener
        self.work: Work | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Compute the block `row["number"]`, unless its file exists; return bad input as a value instead of raising it.

        Ray would repeat a call that raises an error at the start, and would wrap the error.
        """
        try:
            return {"frames": _finish(self.files, self._work, self.files.blocks[row["number"]]), "error": ""}
        except Exception as error:
            known = error if isinstance(error, BadInputError) else refused_by_the_system(error)
            if known is None:
                raise
            return {"frames": 0, "error": json.dumps([known.where, known.found, known.expected, known.hint])}

    def _work(self, block: Block) -> bytes:
        self.work = self.work or self.opener()
        self.files.begin(block)
        return self.work(block)


def _on_ray(files: BlockFiles, opener: Opener, engine: Engine, blocks: Sequence[Block], device: str) -> Iterator[int]:
    data = import_extra("ray.data", "ray")
    with ray_cluster(engine.address, len(blocks)) as ray:
        resources = ray.cluster_resources()
        gpus = 1 if device.startswith("cuda") else 0
        has = int(resources.get("GPU", 0)) if gpus else int(resources.get("CPU", 0))
        need = f"{'GPUs' if gpus else 'processors'} for Ray's workers"
        require(has, "--engine ray", "none in the cluster", need, "start the cluster on machines that have them")
        most = min(engine.workers or has, len(blocks))
        context = data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False  # we have a progress bar of our own
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        rows = [{"number": block.number} for block in blocks]
        corpus = data.from_items(rows, override_num_blocks=min(len(rows), TASKS)).map(
            RayWorker,
            fn_constructor_args=(files, opener, Path.cwd()),
            # The pool grows when the cluster grows.
            compute=data.ActorPoolStrategy(min_size=min(most, has), max_size=most, max_tasks_in_flight_per_actor=1),
            num_cpus=1,
            num_gpus=gpus or None,
        )  # Ray restarts workers that died, and repeats their blocks
        # Threads that prefetch would keep running after the end.
        with _ended(iter(corpus.iter_batches(batch_size=None, prefetch_batches=0))) as batches:
            for batch in batches:
                for frames, error in zip(batch["frames"].tolist(), batch["error"].tolist(), strict=True):
                    if error:
                        raise BadInputError(*json.loads(error))
                    yield frames


@contextmanager
def _ended(batches: Any) -> Iterator[Any]:
    """Close a generator of Ray Data's batches at the end, and wait for the thread that schedules their work.

    Without this wait, the thread could call Ray after Ray has been stopped; Ray then ends the whole process.
    """
    try:
        yield batches
    finally:
        batches.close()
        for thread in threading.enumerate():
            if thread.name.startswith("StreamingExecutor"):
                thread.join(WAIT)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def ray_cluster(address: str | None, workers: int) -> Iterator[Any]:
    """Connect to a Ray cluster and disconnect at the end, or start a cluster on this machine and stop it at the end.

    Args:
        address: HOST:PORT or auto; `None` starts a cluster.
        workers: Number of processors of a cluster that this call starts.

    Yields:
        The module `ray`.

    Raises:
        BadInputError: If no cluster answers, or the cluster refuses the connection.
        MissingExtraError: If Ray is not installed.
    """
    Engine("ray", workers, address).check()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage data are sent unless the user asks for it
    ray = import_extra("ray", "ray")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    own = {"num_cpus": workers, "include_dashboard": False} if address is None else {}
    try:
        ray.init(address=address or "local", **own, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        found = str(error).splitlines()[0]
        hint = "check `ray status` and its versions, and set RAY_AUTH_MODE=token where the cluster asks for one"
        raise BadInputError(f"cluster {address}", found, "a cluster that takes us", hint) from None
    try:
        yield ray
    finally:
        ray.shutdown()
