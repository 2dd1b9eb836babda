"""What environments record of their episodes for a replay: ``record`` in the info of the last step."""
from typing import Any, Dict, List, Optional, Tuple

from ding_common import append_json, parallel
from ding_common.output.json_lines import json_lines

from .group import Collected

NAME = 'records.jsonl'


def write_records(path: str, groups: List[Collected]) -> None:
    """Append the records of groups to a file of JSON lines, a line for each row."""
    if parallel.rank() > 0:
        return
    for group in groups:
        place = dict(collect_iter=group.sample['collect_iter'], group=group.sample['group_id'])
        for row, info in enumerate(group.infos):
            if 'record' in info:
                append_json(path, dict(place, row=row, record=info['record']))


def read_records(path: str, collect_iter: Optional[int]) -> Dict[Tuple[int, int], Any]:
    """The records of a collect by group and row; of a collect that a resumed run repeated, the last ones."""
    mine = (each for each in json_lines(path, _read) if each[0] == collect_iter)
    return {place: record for _, place, record in mine}


def _read(line: Dict[str, Any]) -> Tuple[int, Tuple[int, int], Any]:
    if not line['record']:
        raise ValueError('an empty record')
    return line['collect_iter'], (line['group'], line['row']), line['record']
