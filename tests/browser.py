"""A headless Chromium that tests drive through its pipe of JSON messages, without further packages."""
import json
import os
import select
import shutil
import subprocess
import time
from typing import Any, Dict, List, Optional

NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')
FLAGS = (
    '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run', '--hide-scrollbars',
    '--disable-extensions', '--disable-background-networking', '--remote-debugging-pipe', '--disable-component-update'
)


def find_browser() -> Optional[str]:
    """Path of a browser, None if this machine has none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page in a browser. ``errors`` are uncaught exceptions and messages of the console, ``requests`` the addresses
    that the page asked for."""

    def __init__(self, folder: Any) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # the browser reads messages from its descriptor 3 and writes to 4
        command = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ['bash', '-c', command, 'bash',
             find_browser(), *FLAGS, f'--user-data-dir={folder}'],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self._number, self._left, self._session = 0, b'', None
        self.errors: List[str] = []
        self.requests: List[str] = []
        target = self.call('Target.createTarget', url='about:blank')['targetId']
        self._session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Network', 'Log'):
            self.call(f'{domain}.enable')

    def __enter__(self) -> 'Browser':
        return self

    def __exit__(self, *error: Any) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> Dict[str, Any]:
        """The result of a command of the browser's protocol."""
        self._number += 1
        message = dict(id=self._number, method=method, params=parameters)
        if self._session is not None:
            message['sessionId'] = self._session
        os.write(self._write, json.dumps(message).encode() + b'\0')
        while True:
            found = self._message()
            if found.get('id') == self._number:
                assert 'error' not in found, found
                return found['result']
            self._note(found)

    def _message(self, seconds: float = 120) -> Dict[str, Any]:
        while b'\0' not in self._left:
            ready, _, _ = select.select([self._read], [], [], seconds)
            assert ready, f'the browser did not answer in {seconds} s'
            self._left += os.read(self._read, 1 << 20)
        message, self._left = self._left.split(b'\0', 1)
        return json.loads(message)

    def _note(self, event: Dict[str, Any]) -> None:
        values = event.get('params', {})
        if event['method'] == 'Runtime.exceptionThrown':
            self.errors.append(str(values['exceptionDetails'].get('exception', values))[:400])
        elif event['method'] == 'Runtime.consoleAPICalled' and values['type'] in ('error', 'warning', 'assert'):
            self.errors.append(str(values['args'])[:400])
        elif event['method'] == 'Log.entryAdded' and values['entry']['level'] == 'error':
            self.errors.append(values['entry']['text'])
        elif event['method'] == 'Network.requestWillBeSent':
            self.requests.append(values['request']['url'])

    def open(self, path: Any, width: int = 1300, height: int = 900) -> float:
        """Open a file and wait until ``ready`` is set on its root; the seconds that this took."""
        self.call(
            'Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        start = time.monotonic()
        self.call('Page.navigate', url=f'file://{os.path.abspath(path)}')
        self.wait('document.documentElement?.dataset.ready === "yes"')
        return time.monotonic() - start

    def value(self, expression: str) -> Any:
        """The value of an expression of JavaScript, or of its promise."""
        found = self.call('Runtime.evaluate', expression=expression, returnByValue=True, awaitPromise=True)
        assert 'exceptionDetails' not in found, found['exceptionDetails']
        return found['result'].get('value')

    def wait(self, expression: str, seconds: float = 60) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, f'{expression} did not become true; {self.errors}'
            time.sleep(0.02)

    def choose(self, element: str, value: Any) -> None:
        """Give a control a value, as a user does."""
        self.value(
            f'(() => {{ const c = document.getElementById({element!r}); c.value = {json.dumps(value)}; '
            'for (const kind of ["input", "change"]) c.dispatchEvent(new Event(kind, {bubbles: true})); })()'
        )

    def click(self, element: str) -> None:
        self.value(f'document.getElementById({element!r}).click()')
