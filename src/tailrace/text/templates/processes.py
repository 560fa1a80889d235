"""The parent's side of the processes for templates (worker.py): they are started, shared by all templates and threads,
and replaced if a template takes too much."""

from __future__ import annotations

import atexit
import marshal
import os
import threading

import msgspec

from tailrace.base.child_process import CRASHES, ChildLostError, ChildProcess, read_cpu_s
from tailrace.base.framed_pipes import MessageTooBigError
from tailrace.base.python_command import select_environment
from tailrace.errors import EngineError, MachineBusyError
from tailrace.text.templates.worker import CPU_LIMIT, TemplateJob, TemplateReply

WORKER = "tailrace.text.templates.worker"
PROCESSES = 2  # at once, each started when it is first needed
START_CPU_S = 2.0  # of processor time, which a process may take beside its job: to start
WAIT_S = 120.0  # for a reply, beside the job's processor time; takes milliseconds on an idle machine
ENVELOPE = 1 << 16  # bytes of a reply beside its texts


class JobLostError(Exception):
    """The job has cost the process.

    Attributes:
        reason: "cpu" or "crash".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TemplateProcess:
    """One process. It starts with the first job and is replaced at once after each loss."""

    def __init__(self) -> None:
        self._child: ChildProcess | None = None
        self._before_s = 0.0  # processor time of the process before the job

    def run(self, job: TemplateJob, source: str) -> TemplateReply:
        """Return the outcome of a job; `source` is sent if the process does not know the template.

        Raises:
            JobLostError: see there. MachineBusyError: the process got almost no processor time. EngineError: the
                process can't be started, or was killed from outside, twice.
        """
        for _ in range(2):
            try:
                reply = self._ask(job)
                return self._ask(job._replace(source=source)) if reply.outcome == "unknown" else reply
            except (ChildLostError, MessageTooBigError, msgspec.MsgspecError) as error:
                reason = self._find_reason(error, job.cpu_s)
                self._replace_child()
                if reason == "busy":
                    text = "the machine is too busy to render the model's chat template; try again later"
                    raise MachineBusyError(text) from None
                if reason is not None:
                    raise JobLostError(reason) from None
            except OSError as error:
                self.close()
                raise EngineError(f"the process that renders chat templates can't be started: {error}") from error
            except BaseException:
                self.close()  # its next reply could be taken for that to another job
                raise
        raise EngineError("the process that renders chat templates was killed from outside")

    def _ask(self, job: TemplateJob) -> TemplateReply:
        if self._child is not None and self._child.ended:
            self.close()  # it was killed from outside while it was idle
        if self._child is None:
            self._child = self._start_child()
        self._before_s = read_cpu_s(self._child.pid)
        within_s = WAIT_S + 10 * job.cpu_s
        self._child.send(marshal.dumps(tuple(job)), within_s)
        reply = msgspec.msgpack.decode(self._child.receive(job.max_bytes + ENVELOPE, within_s), type=TemplateReply)
        if reply.last:
            self._replace_child()
        return reply

    def _start_child(self) -> ChildProcess:
        return ChildProcess(WORKER, select_environment())

    def _replace_child(self) -> None:
        """Start the next process after a loss, so that the next job need not wait for it."""
        self.close()
        try:
            self._child = self._start_child()
        except OSError:  # the next job will report it
            self._child = None

    def _find_reason(self, error: Exception, cpu_s: float) -> str | None:
        """Return why the job has cost the process; None for a signal that no template causes. A process that does not
        answer is "busy", unless it has used more than the job's processor time. Then the job has stopped the timer."""
        if not isinstance(error, ChildLostError) or self._child is None:
            return "crash"  # no reply of ours
        if error.timeout:
            used_s = read_cpu_s(self._child.pid) - self._before_s
            return "cpu" if used_s > cpu_s + START_CPU_S else "busy"
        number = self._child.find_signal()
        return "cpu" if number == CPU_LIMIT else "crash" if number is None or number in CRASHES else None

    def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def forget(self) -> None:
        """Drop the process of the process from which this one was forked."""
        child, self._child = self._child, None
        if child is not None:
            child.forget()


class TemplateProcesses:
    """The processes of this process, PROCESSES at most. Any thread may use them."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._idle = [TemplateProcess() for _ in range(PROCESSES)]

    def run(self, job: TemplateJob, source: str) -> TemplateReply:
        """Return the outcome of a job; see TemplateProcess.run. Waits while all processes work."""
        with self._lock:
            self._lock.wait_for(lambda: self._idle)
            process = self._idle.pop()  # the one used last: the others may not have started
        try:
            return process.run(job, source)
        finally:
            with self._lock:
                self._idle.append(process)
                self._lock.notify()

    def close(self) -> None:
        """End the idle processes. The next job starts a process."""
        with self._lock:
            for process in self._idle:
                process.close()

    def forget(self) -> None:
        """Start anew in a process that has been forked: the processes belong to its parent."""
        idle, self._lock = self._idle, threading.Condition()
        self._idle = [TemplateProcess() for _ in range(PROCESSES)]
        for process in idle:
            process.forget()


SHARED = TemplateProcesses()
atexit.register(SHARED.close)
os.register_at_fork(after_in_child=SHARED.forget)
