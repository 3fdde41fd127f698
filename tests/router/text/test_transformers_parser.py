"""Import of transformers' parser. What it parses is in test_response_parser.py."""

import pytest

from router.errors import NotReady
from router.text.transformers_parser import import_chat_parsing, preload_chat_parsing


def test_parser_whose_files_cannot_be_read_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise OSError(24, "Too many open files", name)
    monkeypatch.setattr("router.text.transformers_parser.import_module", fail)
    preload_chat_parsing()
    with pytest.raises(NotReady, match=r"cannot be loaded now: .* Too many open files: .*; try again"):
        import_chat_parsing()
