"""Faults of judges and of programs, for ``tools/fault_cases.py``."""
import json
import os
import re
import threading
import time
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict

PORT = 18099  # of judges, always the same, so that the page does not change
HOSTILE = '''
from dizoo_llm.base import Problem
from dizoo_llm.rewards.code import Code

CODE = Code(tests='tests', program_in='whole', seconds=1, keys=dict(tests=None), where='reward')
SCORE, = CODE.scores([Problem('', metadata=dict(tests=[['', 'ok']]))], [PROGRAM])
print(f'the program scores {SCORE}', flush=True)


def score(problem, completion):
    return SCORE
'''
PROGRAMS = {
    'forks without end': 'import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass',
    'never ends and ignores signals': 'import signal\nfor kind in (signal.SIGTERM, signal.SIGXCPU, signal.SIGALRM):\n'
    '    signal.signal(kind, signal.SIG_IGN)\nwhile True:\n    pass',
    'writes without end': 'while True:\n    print("ok" * 10000)',
    'takes all memory': 'x = []\nwhile True:\n    x.append(bytearray(1 << 24))',
    'writes into the folder of the run': 'open("FOLDER/executed", "w").write("x")\nprint("ok")',
}


class _Judges(BaseHTTPRequestHandler):
    """Judges, by their path, which are slow, limit their rate, or give no verdict."""
    may_limit = threading.Semaphore(1)  # one request is told to wait, however many come at the same time

    def do_POST(self) -> None:
        kind, text = self.path.split('/')[1], self.rfile.read(int(self.headers['Content-Length'])).decode()
        if kind == 'slow':
            return time.sleep(30)
        if kind == 'closed' or kind == 'limited' and self.may_limit.acquire(blocking=False):
            return self._send(429, dict(error=dict(message='slow down')), '1' if kind == 'limited' else '3600')
        verdict = 'ten points' if kind == 'wrong' else f"VERDICT-{re.findall('VERDICT-([0-9a-f]+)', text)[0]}: 10"
        choice = dict(index=0, finish_reason='stop', message=dict(role='assistant', content=verdict))
        self._send(200, dict(id='1', object='chat.completion', created=1, model='judge', choices=[choice]))

    def _send(self, status: int, body: Dict[str, Any], wait: str = '') -> None:
        self.send_response(status)
        for name, value in (('Content-Type', 'application/json'), *([('Retry-After', wait)] if wait else [])):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 64  # all rows of a collect ask at the same time


@lru_cache(maxsize=None)
def _serve_judges() -> None:
    server = _Server(('127.0.0.1', PORT), _Judges)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def judged(folder: str) -> None:
    _serve_judges()
    _write(folder, 'a.jsonl', '{"question": "a", "answer": "b"}\n')


def hostile(program: str) -> Callable[[str], None]:
    """A run whose reward ``code`` gets this program, which writes ok if it could do its harm."""

    def prepare(folder: str) -> None:
        _write(folder, 'a.jsonl', '{"question": "a", "answer": "b", "tests": [["", "ok"]]}')
        program_in = repr(program.replace('FOLDER', os.path.abspath(folder)))
        _write(folder, 'hostile.py', HOSTILE.replace('PROGRAM', program_in))

    return prepare


def _write(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name), 'w', encoding='utf-8') as f:
        f.write(text)
