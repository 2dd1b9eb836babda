"""Rows of data files and data sets."""
import codecs
import csv
import glob
import json
import os
import re
from typing import Any, Dict, Iterable, Iterator, List, NoReturn, Optional, Sequence, TextIO, Tuple

from ding_common import ConfigError, check_is_file, check_links, describe

from .facts import digest
from .python_file import is_python, rows_of

READERS = ('.jsonl', '.json', '.csv', '.parquet')
# owner/name of the hub, perhaps a config, and a split
_HUB = re.compile(r'(?P<path>[\w.-]+/[\w.-]+)(?::(?P<name>[\w.-]+))?(?:\[(?P<split>[^\[\]]+)\])?')
_SPLIT = re.compile(r'(?P<folder>.+?)(?:\[(?P<split>[^\[\]]+)\])?')


def read_rows(key: str, source: Any) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """
    The location of each row, for messages, and its fields. ``key`` of ``env.task`` names the source: a file; a pattern
    such as ``data/*.jsonl``; a Python file; a folder of ``Dataset.save_to_disk``, with ``[split]`` behind that of
    several; a data set of the hub, ``owner/name:config[split]``; a ``datasets.Dataset``; a list of files, or of rows.
    """
    where = f'env.task.{key} = {shown(source)}'
    try:
        for place, row in _rows(key, source, where):
            if not isinstance(row, dict):
                raise ValueError(f'{place} is not an object with named fields: {row!r:.80}')
            yield place, row
    except ConfigError:
        raise
    except (ValueError, ImportError, OSError) as error:
        raise ConfigError(f'{where}: {error}') from error


def _rows(key: str, source: Any, where: str) -> Iterator[Tuple[str, Any]]:
    if not isinstance(source, str):
        if not isinstance(source, (list, tuple)):
            yield from _numbered(_of_datasets(source, None))
        elif source and all(isinstance(each, str) for each in source):
            yield from _of_files(key, source, where)
        else:
            yield from _numbered(source)
    elif glob.has_magic(source) and not os.path.exists(source) and glob.glob(source):
        yield from _of_files(key, sorted(glob.glob(source)), where)
    elif os.path.splitext(source)[1] in READERS:
        yield from _of_file(key, source)
    elif is_python(source):
        yield from _numbered(rows_of(source, f'env.task.{key}'))
    elif os.path.isdir(_SPLIT.fullmatch(source)['folder']):
        found = _SPLIT.fullmatch(source)
        check_links(found['folder'], f'env.task.{key}')
        yield from _numbered(_of_datasets(_datasets().load_from_disk(found['folder']), found['split']))
    elif _HUB.fullmatch(source) and not os.path.exists(source):
        found = _HUB.fullmatch(source).groupdict()
        split = found.pop('split')
        yield from _numbered(_of_datasets(_of_hub(found), split))
    else:
        raise ConfigError(
            f"{where}: must end in {', '.join(READERS)} or .py, be a folder of datasets, or name a data set of the "
            "hub, such as 'openai/gsm8k:main[train]'."
        )


def _of_files(key: str, files: Sequence[str], where: str) -> Iterator[Tuple[str, Any]]:
    for file in files:
        if os.path.splitext(file)[1] not in READERS:
            raise ConfigError(f"{where}: {file} must end in {', '.join(READERS)}.")
        yield from ((f'{file}: {place}', row) for place, row in _of_file(key, file))


def _of_file(key: str, path: str) -> Iterator[Tuple[str, Any]]:
    check_is_file(path, f'env.task.{key}')
    check_links(path, f'env.task.{key}')
    read = dict(zip(READERS, (_jsonl, _json, _csv, _parquet)))
    return read[os.path.splitext(path)[1]](path)


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ImportError("needs the extra: pip install '.[datasets]' in the clone") from error
    return datasets


def _of_hub(names: Dict[str, Optional[str]]) -> Any:
    try:
        return _datasets().load_dataset(**names)
    except ImportError:
        raise
    except Exception as error:  # datasets has many errors: no network, no such repository, no such config
        raise ValueError(f'cannot be loaded from the hub or its cache ({describe(error)})') from error


def _of_datasets(found: Any, split: Optional[str]) -> Iterable[Any]:
    """A ``Dataset``, or one of a ``DatasetDict``."""
    if hasattr(found, 'column_names') and isinstance(found.column_names, list):
        if split is not None:
            raise ValueError(f'has no splits; remove [{split}]')
        return found
    if not isinstance(found, dict):
        raise ValueError('must be a list of dicts, a path, or a datasets.Dataset')
    if split not in found:
        raise ValueError(f"must name one of its splits behind it in brackets: {', '.join(f'[{s}]' for s in found)}")
    return found[split]


def shown(source: Any) -> str:
    """A source in a message: rows by their number."""
    of_dicts = isinstance(source, (list, tuple)) and len(source) > 0 and isinstance(source[0], dict)
    if of_dicts or isinstance(getattr(source, 'column_names', None), list) and hasattr(source, '__len__'):
        return f'{len(source):,} rows'
    return f'{source!r:.200}'


def stamp(source: Any) -> Any:
    """A value that changes when a source does; None without a source."""
    if isinstance(source, str):
        paths = sorted(glob.glob(source)) or [source]
    elif isinstance(source, (list, tuple)) and all(isinstance(each, str) for each in source):
        paths = source
    else:
        return getattr(source, '_fingerprint', None) or (None if source is None else digest([repr(source)]))
    found = [(path, os.stat(path) if os.path.exists(path) else None) for path in paths]
    return tuple((path, s and (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns)) for path, s in found)


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
