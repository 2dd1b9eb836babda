"""
The other end of ``Servers``: ``python serve.py FILE BYTES`` answers questions by the functions of a file. What answers
is a fork, so that after an answer that took too long the next one imports nothing.

It ends with the process that started it, even if that is killed: at the end of its input, or at the limit of a
question, by a signal whose default action needs no interpreter.
"""
import importlib.util
import json
import logging
import os
import pickle
import resource
import signal
import sys
from typing import Any, BinaryIO, Callable, Dict


def answer(functions: Dict[str, Callable], questions: BinaryIO, answers: BinaryIO, timer: int) -> None:
    """Answer questions until their end. A question that takes longer than its limit ends the process by a signal."""
    while True:
        size = int.from_bytes(questions.read(8), 'little')
        if size == 0:
            return
        line = _line(functions, questions.read(size), timer)
        signal.setitimer(timer, 0)
        _tell(answers, line)


def _line(functions: Dict[str, Callable], question: bytes, timer: int) -> bytes:
    try:
        seconds, name, *arguments = pickle.loads(question)
        signal.setitimer(timer, seconds)
        return _json([functions[name](*arguments), None])
    except BaseException as error:  # a function may raise anything
        return _json([None, f'{type(error).__name__}: {_said(error)}'])


def _tell(answers: BinaryIO, line: bytes) -> None:
    answers.write(line)
    answers.flush()


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode('utf-8', 'surrogatepass') + b'\n'


def _said(error: BaseException) -> str:
    try:
        return ' '.join(str(error).split())
    except BaseException:  # as in _line
        return 'its message cannot be read'


def main(file: str, memory: int) -> None:
    """Answer by the functions of a file. Nothing that they print or log is shown."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path = [path for path in sys.path if path != here]  # its files would hide modules of their names
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGPIPE, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    logging.disable(logging.CRITICAL)
    questions, answers = os.fdopen(os.dup(0), 'rb'), os.fdopen(os.dup(1), 'wb')
    for stream in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    spec = importlib.util.spec_from_file_location('functions', file)
    functions = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(functions)
    except ImportError:
        return _tell(answers, _json(None))
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    try:
        resource.setrlimit(resource.RLIMIT_AS, (memory if most < 0 else min(memory, most), most))
    except (OSError, ValueError):  # not on this system
        pass
    _tell(answers, _json('ready'))
    while True:
        own = os.fork()
        if own == 0:
            return answer(vars(functions), questions, answers, signal.ITIMER_PROF)
        if os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]) != -signal.SIGPROF:
            return
        _tell(answers, _json('late'))


if __name__ == '__main__':
    main(sys.argv[1], int(sys.argv[2]))
