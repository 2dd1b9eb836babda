"""A stand-in of the Hugging Face hub: what ``huggingface_hub`` asks of its API while it uploads a folder."""
import base64
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import yaml


class Hub(BaseHTTPRequestHandler):
    """Takes the files of commits as base64, into ``server.files`` by repository. Its only token is ``right``."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        asked = self.path.removeprefix('/api/').split('?')[0].split('/')
        if self.headers['Authorization'] != 'Bearer right':
            return self._answer(dict(error='Invalid username or password.'), 401)
        if asked == ['repos', 'create']:
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            self.server.private[name] = asked['private'] if 'private' in asked else asked['visibility'] == 'private'
            return self._answer(dict(url=f'{self.server.url}/{name}'))
        if asked == ['validate-yaml']:
            metadata = yaml.safe_load(json.loads(body)['content'].split('---\n')[1])
            wrong = [] if isinstance(metadata, dict) else [dict(message='no metadata')]
            return self._answer(dict(errors=wrong, warnings=[]), 400 if wrong else 200)
        models, owner, name, what, revision = asked
        assert (models, revision) == ('models', 'main')
        if what == 'preupload':
            given = [file['path'] for file in json.loads(body)['files']]
            return self._answer(dict(files=[dict(path=p, uploadMode='regular', shouldIgnore=False) for p in given]))
        assert what == 'commit'
        for line in map(json.loads, body.splitlines()):
            if line['key'] == 'file':
                assert line['value']['encoding'] == 'base64'
                content = base64.b64decode(line['value']['content'])
                self.server.files.setdefault(f'{owner}/{name}', {})[line['value']['path']] = content
        self._answer(dict(commitUrl=f'{self.server.url}/{owner}/{name}/commit/1', commitOid='1', success=True))

    def _answer(self, content, status=200):
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


@contextmanager
def local_hub():
    """A stand-in that answers at ``url``."""
    with ThreadingHTTPServer(('127.0.0.1', 0), Hub) as server:
        server.url, server.files, server.private = f'http://127.0.0.1:{server.server_port}', {}, {}
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
