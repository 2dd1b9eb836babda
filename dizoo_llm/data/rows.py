"""Rows of data files."""
import codecs
import csv
import json
import os
from typing import Any, Dict, Iterable, Iterator, List, NoReturn, Optional, TextIO, Tuple

from ding_common import ConfigError, check_is_file, check_links


def read_rows(key: str, path: str) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """The location of each row of a data file, for messages, and its fields. ``key`` of ``env.task`` names the file."""
    where = f'env.task.{key} = {path!r}'
    readers = {'.jsonl': _jsonl, '.json': _json, '.csv': _csv, '.parquet': _parquet}
    ending = os.path.splitext(path)[1]
    if ending not in readers:
        raise ConfigError(f"{where}: must end in {', '.join(readers)}.")
    check_is_file(path, f'env.task.{key}')
    check_links(path, f'env.task.{key}')
    try:
        for place, row in readers[ending](path):
            if not isinstance(row, dict):
                raise ValueError(f'{place} is not an object with named fields: {row!r:.80}')
            yield place, row
    except (ValueError, ImportError, OSError) as error:
        raise ConfigError(f'{where}: {error}') from error


def _jsonl(path: str) -> Iterator[Tuple[str, Any]]:
    with _text(path, newline=None) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f'line {number}', _parse(line, f'line {number} is not valid JSON')


def _json(path: str) -> Iterator[Tuple[str, Any]]:
    with _text(path) as file:
        rows = _parse(file.read(), 'is not valid JSON')
    if not isinstance(rows, list):
        raise ValueError('must contain a list')
    yield from _numbered(rows)


def _csv(path: str) -> Iterator[Tuple[str, Dict[str, str]]]:
    with _text(path) as lines:
        reader = csv.DictReader(lines, strict=True)
        try:
            for place, row in _numbered(reader):
                if None in row:
                    raise ValueError(f'{place} has more fields than the header')
                yield place, row
        except csv.Error as error:
            raise ValueError(f'the row that starts in line {reader.line_num + 1} is not valid CSV ({error})') from error


def _parquet(path: str) -> Iterator[Tuple[str, Dict[str, Any]]]:
    try:
        from pyarrow import ArrowException, Table, float32, float64, parquet, string
    except ImportError as error:
        raise ImportError("reading parquet needs the extra: pip install '.[parquet]' in the clone") from error

    def rows(table: Table) -> List[Dict[str, Any]]:
        for i, field in enumerate(table.schema):
            if field.type == float32():  # 0.1, and not 0.10000000149011612
                table = table.set_column(i, field.name, table[i].cast(string()).cast(float64()))
        return table.to_pylist()

    try:
        with parquet.ParquetFile(path) as file:
            yield from _numbered(row for batch in file.iter_batches() for row in rows(Table.from_batches([batch])))
    except ArrowException as error:
        raise ValueError(f'is not a valid parquet file ({error})') from error


def _text(path: str, newline: Optional[str] = '') -> TextIO:
    """A file of text, without the byte order mark that spreadsheets add. Its content is checked, a part at a time."""
    decoder, line = codecs.getincrementaldecoder('utf-8')(), 1
    with open(path, 'rb') as f:
        while True:
            part = f.read(1 << 20)
            if b'\0' in part:
                line += part.count(b'\n', 0, part.index(0))
                raise ValueError(f'line {line} contains a NUL byte; save the file as UTF-8')
            try:
                decoder.decode(part, final=not part)
            except UnicodeDecodeError as error:
                line += error.object.count(b'\n', 0, error.start)
                raise ValueError(f'line {line} is not valid UTF-8 ({error.reason}); save the file as UTF-8') from error
            if not part:
                return open(path, encoding='utf-8-sig', newline=newline)
            line += part.count(b'\n')


def _parse(text: str, otherwise: str) -> Any:
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{otherwise} ({error})') from error


def refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f'{constant} is not a JSON number')


def _numbered(rows: Iterable[Any]) -> Iterator[Tuple[str, Any]]:
    return ((f'row {number}', row) for number, row in enumerate(rows, 1))
