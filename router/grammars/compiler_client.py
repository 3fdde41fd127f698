"""Compiler of grammars off the event loop, in processes that limit the time and memory that a grammar may take. They
are started when grammars come, and again after they were killed or have died. Results are cached, with rejections."""

import asyncio
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from router.errors import InvalidRequest, Overloaded
from router.grammars.parameters import Grammar
from router.worker_process import STOP_REASON, ProcessWorker, WorkerAnswer, WorkerTask, shorten_reason

COMPILER_COMMAND = (sys.executable, "-P", "-m", "router.grammars.compiler_process")
MAX_COMPILE_SECONDS = 1.5  # of the processor per grammar, so that a client gets its rejection within two seconds
MAX_STALLED_SECONDS = 8.0  # per grammar, while others have the processor
MAX_WAIT_SECONDS = 30.0  # that a request waits for its grammar
MAX_CACHED_RESULTS = 128
NUM_WORKERS = 2
MAX_PENDING_GRAMMARS, MAX_PENDING_PER_TENANT = 64, 32
COMPILER_TASK = WorkerTask("compile", "compiled", "grammars")


class CompilerWorker(ProcessWorker):
    """Compiler of one grammar at a time, in a process of its own."""

    def __init__(self, get_tokenizer: Callable[[], str], command: Sequence[str]) -> None:
        super().__init__(COMPILER_TASK, command, lambda: {"tokenizer": get_tokenizer()})

    def compile(self, grammar: Grammar) -> tuple[WorkerAnswer, bool]:
        """Return the answer, and whether it is a verdict on the grammar that would be the same at any time. Blocks."""
        answer, is_verdict = self.send_request({"kind": grammar.kind, "source": grammar.source}, MAX_COMPILE_SECONDS,
                                               MAX_STALLED_SECONDS)
        return answer | {"refused": shorten_reason(answer["refused"])} if "refused" in answer else answer, is_verdict


@dataclass(slots=True)
class CompilerJob:
    """Grammar that waits to be compiled or is being compiled. All requests for it share the job."""

    grammar: Grammar
    answer: "asyncio.Future[WorkerAnswer]"
    is_started: bool = False


class GrammarCompiler:
    """Compiler of grammars, fair between tenants. `close` ends its threads and processes."""

    def __init__(self, get_tokenizer: Callable[[], str], command: Sequence[str] = COMPILER_COMMAND) -> None:
        """`get_tokenizer` returns the path or the content of the tokenizer's file."""
        self._executor = ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="grammars")
        self._workers = [CompilerWorker(get_tokenizer, command) for _ in range(NUM_WORKERS)]
        self._idle_workers = [*reversed(self._workers)]  # the last one, which has a process if any has, is next
        self._cached_results: OrderedDict[bytes, WorkerAnswer] = OrderedDict()
        self._jobs: dict[bytes, CompilerJob] = {}
        # Digests of the grammars that each tenant waits for; the tenant whose turn is next comes first.
        self._queues: OrderedDict[str, deque[bytes]] = OrderedDict()

    async def compile(self, grammar: Grammar, tenant_name: str = "") -> str:
        """Return the compiled grammar in the form that shards load. Raises InvalidRequest or Overloaded."""
        digest = grammar.digest
        answer = self._cached_results.get(digest)
        if answer is None:
            answer = await self._wait_for_answer(digest, grammar, tenant_name)
        else:
            self._cached_results.move_to_end(digest)
        if "overloaded" in answer:
            raise Overloaded(answer["overloaded"])
        if "refused" in answer:
            raise InvalidRequest(f"the grammar is refused: {answer['refused']}")
        return str(answer["grammar"])

    def close(self) -> None:
        for job in self._jobs.values():
            if not job.is_started:
                job.answer.set_result({"refused": STOP_REASON})
        self._queues.clear()
        for worker in self._workers:
            worker.kill()
            self._executor.submit(worker.close_process)
        self._executor.shutdown()

    async def _wait_for_answer(self, digest: bytes, grammar: Grammar, tenant_name: str) -> WorkerAnswer:
        """Wait for the job of a grammar, which no request's cancellation ends, for at most MAX_WAIT_SECONDS."""
        job = self._jobs.get(digest)
        if job is None or not job.is_started:
            self._enqueue(digest, tenant_name)
        if job is None:
            job = self._jobs[digest] = CompilerJob(grammar, asyncio.get_running_loop().create_future())
        self._start_jobs()
        try:
            return await asyncio.wait_for(asyncio.shield(job.answer), MAX_WAIT_SECONDS)
        except TimeoutError:
            raise Overloaded(f"other grammars were compiled before this one for {MAX_WAIT_SECONDS:g} seconds") from None

    def _enqueue(self, digest: bytes, tenant_name: str) -> None:
        """Let the tenant wait for a grammar, which another one may be waiting for, too."""
        queue = self._queues.get(tenant_name, ())
        is_full = digest not in self._jobs and len(self._jobs) >= MAX_PENDING_GRAMMARS
        if is_full or len(queue) >= MAX_PENDING_PER_TENANT:
            raise Overloaded(f"{len(self._jobs) if is_full else len(queue)} other grammars wait to be compiled")
        if digest not in queue:
            self._queues.setdefault(tenant_name, deque()).append(digest)

    def _start_jobs(self) -> None:
        """Give the next grammars, of one tenant after the other, to workers that are idle."""
        while self._idle_workers and (job := self._pop_next_job()) is not None:
            job.is_started = True
            worker = self._idle_workers.pop()
            compiled = asyncio.get_running_loop().run_in_executor(self._executor, worker.compile, job.grammar)
            compiled.add_done_callback(partial(self._finish_job, worker, job))

    def _pop_next_job(self) -> CompilerJob | None:
        while self._queues:
            tenant_name, queue = self._queues.popitem(last=False)
            digest = queue.popleft()
            if queue:
                self._queues[tenant_name] = queue  # behind all others
            job = self._jobs.get(digest)
            if job is not None and not job.is_started:  # another tenant's turn may have started it
                return job
        return None

    def _finish_job(self, worker: CompilerWorker, job: CompilerJob,
                    compiled: "asyncio.Future[tuple[WorkerAnswer, bool]]") -> None:
        self._idle_workers.insert(0 if worker.process is None else len(self._idle_workers), worker)
        del self._jobs[job.grammar.digest]
        answer, is_lasting = compiled.result()
        if is_lasting:
            self._cached_results[job.grammar.digest] = answer
            if len(self._cached_results) > MAX_CACHED_RESULTS:
                self._cached_results.popitem(last=False)
        job.answer.set_result(answer)
        self._start_jobs()
