"""What `demo` refuses before it begins; `make demo` runs it."""

from pathlib import Path

import pytest

from clozebert.scripts import demo
from clozebert.utils.errors import UserError


def test_an_unknown_recipe_is_told_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--config: unknown recipe 'foo'"):
        demo.main(["--config", "foo", "--output_dir", str(tmp_path / "o")])
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task_examples", "20"], "task_examples=20 must be at least 50"),
        (["--max_steps", "0"], "max_steps=0 must be at least 1"),
        (["--max_minutes", "0"], "max_minutes=0 must be above 0"),
    ],
)
def test_a_number_that_a_later_step_refuses_is_told_before_any_work(
    flags: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        demo.main([*flags, "--output_dir", str(tmp_path / "o")])
    assert not (tmp_path / "o").exists()
