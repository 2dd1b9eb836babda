"""Tasks whose problems come from a user: data files, Python files, lists."""
from .file import FileTask
from .listed import ListTask
from .python_file import PythonTask
