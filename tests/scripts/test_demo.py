"""What `demo` refuses before it begins; `make demo` runs it."""

from pathlib import Path

import pytest

from clozebert.scripts import demo
from clozebert.utils.errors import UserError


def test_an_unknown_recipe_is_told_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--config: unknown recipe 'foo'"):
        demo.main(["--config", "foo", "--output_dir", str(tmp_path / "o")])
    assert not (tmp_path / "o").exists()
