"""Compiler of grammars off the event loop, in processes that limit the time and memory that a grammar may take. They
are started when grammars come, and again after they were killed or have died. Results are cached, with rejections."""

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from router.errors import InvalidRequest, Overloaded
from router.grammars.parameters import Grammar
from router.processes.worker_process import (
    STOP_REASON,
    RestartingWorker,
    WorkerAnswer,
    WorkerTaskWording,
    shorten_reason,
)
from router.request import FairSemaphore, Turn

COMPILER_COMMAND = (sys.executable, "-P", "-m", "router.grammars.compiler_process")
MAX_COMPILE_SECONDS = 1.5  # of the processor per grammar, so that a client gets its rejection within two seconds
MAX_STALLED_SECONDS = 8.0  # per grammar, while others have the processor
MAX_WAIT_SECONDS = 30.0  # that a request waits for its grammar
MAX_CACHED_RESULTS = 128
NUM_WORKERS = 2
MAX_PENDING_GRAMMARS, MAX_PENDING_PER_TENANT = 64, 32  # the latter beside those that are compiled
COMPILER_TASK = WorkerTaskWording("compile", "compiled", "grammars")


class ResumedTokenUnfit(Exception):
    """The grammar does not allow a token of the output so far."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class CompilerWorker(RestartingWorker):
    """Compiler of one grammar at a time, in a process of its own."""

    def __init__(self, get_tokenizer: Callable[[], str], command: Sequence[str]) -> None:
        super().__init__(COMPILER_TASK, command, lambda: {"tokenizer": get_tokenizer()})

    def compile(self, grammar: Grammar) -> tuple[WorkerAnswer, bool]:
        """Return the answer, and whether it is a verdict on the grammar that would be the same at any time. Blocks."""
        request = {"kind": grammar.kind, "source": grammar.source, "tokens": [*grammar.resumed_tokens]}
        answer, is_verdict = self.send_request(request, MAX_COMPILE_SECONDS, MAX_STALLED_SECONDS)
        return answer | {"refused": shorten_reason(answer["refused"])} if "refused" in answer else answer, is_verdict


@dataclass(slots=True, eq=False)
class CompilerJob:
    """Grammar that waits to be compiled or is being compiled. All requests for it share the job."""

    grammar: Grammar
    answer: "asyncio.Future[WorkerAnswer]"
    is_started: bool = False
    num_requests: int = 0  # that wait for the answer
    tenants: set[str] = field(default_factory=set)  # that wait for a turn to compile it


class GrammarCompiler:
    """Compiler of grammars, fair between tenants. `close` ends its threads and processes."""

    def __init__(self, get_tokenizer: Callable[[], str], command: Sequence[str] = COMPILER_COMMAND) -> None:
        """`get_tokenizer` returns the path or the content of the tokenizer's file."""
        self._executor = ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="grammars")
        self._workers = [CompilerWorker(get_tokenizer, command) for _ in range(NUM_WORKERS)]
        self._idle_workers = [*reversed(self._workers)]  # the last one, which has a process if any has, is next
        self._semaphore = FairSemaphore(NUM_WORKERS, NUM_WORKERS + MAX_PENDING_PER_TENANT, describe_full_queue)
        self._cached_results: OrderedDict[bytes, WorkerAnswer] = OrderedDict()
        self._jobs: dict[bytes, CompilerJob] = {}

    async def compile(self, grammar: Grammar, tenant_name: str = "") -> str:
        """Return the compiled grammar in the form that shards load. Raises InvalidRequest, Overloaded, or
        ResumedTokenUnfit."""
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
        if "unfit_index" in answer:
            raise ResumedTokenUnfit(answer["unfit_index"])
        return str(answer["grammar"])

    def close(self) -> None:
        for job in self._jobs.values():
            if not job.is_started:
                job.is_started = True
                job.answer.set_result({"refused": STOP_REASON})
        self._semaphore.close()
        for worker in self._workers:
            worker.kill()
            self._executor.submit(worker.close_process)
        self._executor.shutdown()

    async def _wait_for_answer(self, digest: bytes, grammar: Grammar, tenant_name: str) -> WorkerAnswer:
        """Wait for the job of a grammar, which goes on as long as any request waits, for at most MAX_WAIT_SECONDS."""
        job = self._jobs.get(digest)
        if job is None:
            if len(self._jobs) >= MAX_PENDING_GRAMMARS:
                raise Overloaded(describe_full_queue(len(self._jobs)))
            job = self._jobs[digest] = CompilerJob(grammar, asyncio.get_running_loop().create_future())
        if not job.is_started and tenant_name not in job.tenants:
            self._request_turn(job, tenant_name)
        job.num_requests += 1
        try:
            return await asyncio.wait_for(asyncio.shield(job.answer), MAX_WAIT_SECONDS)
        except TimeoutError:
            raise Overloaded(f"other grammars were compiled before this one for {MAX_WAIT_SECONDS:g} seconds") from None
        finally:
            job.num_requests -= 1

    def _request_turn(self, job: CompilerJob, tenant_name: str) -> None:
        try:
            turn = self._semaphore.request_turn(tenant_name)
        except Overloaded:
            if not job.tenants:
                del self._jobs[job.grammar.digest]
            raise
        job.tenants.add(tenant_name)
        turn.add_done_callback(partial(self._compile_in_turn, job, tenant_name))

    def _compile_in_turn(self, job: CompilerJob, tenant_name: str, turn: Turn) -> None:
        """Compile a grammar in a turn of the tenant, unless that of another came earlier or all requests have left."""
        job.tenants.discard(tenant_name)
        if job.is_started or not job.num_requests:
            if not job.is_started and not job.tenants:
                del self._jobs[job.grammar.digest]
            self._semaphore.give_back(tenant_name, turn)
            return
        job.is_started = True
        worker = self._idle_workers.pop()
        compiled = asyncio.get_running_loop().run_in_executor(self._executor, worker.compile, job.grammar)
        compiled.add_done_callback(partial(self._finish_job, worker, job))
        compiled.add_done_callback(lambda _: self._semaphore.give_back(tenant_name, turn))

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


def describe_full_queue(num_grammars: int) -> str:
    return f"{num_grammars} other grammars wait to be compiled"
